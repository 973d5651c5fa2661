"""Plugins in Python files that nobody has installed: ``--plugin FILE`` after any command, or ``plugins: [FILE]`` in settings.

A file is a module below this package, named after its path and its content, so that every process that is started finds the
same one: which files take part is a variable of the environment. Settings may name only what the user has named on a command
line before, with the same content: code that came with a downloaded file is not run.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import sha256
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

from erniecore_system.files import cache_home

from erniecore.errors import PluginBroken, UsageError, shorten
from erniecore.kinds import KINDS

if TYPE_CHECKING:
    from erniecore.plugin import Plugin

#: variable of the environment that holds the files of this process and of those that it starts, as JSON
VARIABLE = "ERNIE_PLUGIN_FILES"


class PluginFile(NamedTuple):
    """A file with plugins. ``path``: absolute. ``named``: on the command line, else by settings."""

    path: str
    sha256: str
    named: bool

    @property
    def module(self) -> str:
        """The module that the file is imported as."""
        stem = re.sub(r"\W", "_", Path(self.path).stem)
        return f"{__name__}.{stem}_{sha256(f'{self.path} {self.sha256}'.encode()).hexdigest()[:12]}"

    @property
    def distribution(self) -> str:
        """What stands for the distribution of its plugins."""
        return Path(self.path).name

    @property
    def version(self) -> str:
        """What stands for the version of its plugins."""
        return f"sha256:{self.sha256[:16]}"


def active() -> tuple[PluginFile, ...]:
    """The files whose plugins can be chosen in this process."""
    return _parsed(os.environ.get(VARIABLE, ""))


@lru_cache(maxsize=8)
def _parsed(text: str) -> tuple[PluginFile, ...]:
    return tuple(PluginFile(*item) for item in json.loads(text)) if text else ()


def activate(files: Sequence[PluginFile]) -> None:
    """Make ``files`` and no others the active ones, here and in the processes that are started."""
    write(json.dumps(list(dict.fromkeys(files))) if files else "")


def write(text: str) -> None:
    """Set the variable of the environment; empty: remove it."""
    os.environ.pop(VARIABLE, None)
    if text:
        os.environ[VARIABLE] = text


def from_words(words: Sequence[str], own: int) -> list[str]:
    """The words of a command line without ``--plugin FILE``, whose files are active from here on.

    Args:
        own: how many words stand before ``--``. Raises ``UsageError`` for a file that cannot be read.
    """
    rest: list[str] = []
    paths: list[str] = []
    waiting = False
    for number, word in enumerate(words):
        key, equals, path = word.partition("=")
        if waiting or (number < own and key == "--plugin" and equals):
            paths.append(word if waiting else path)
            waiting = False
        elif number < own and word == "--plugin":
            waiting = True
        else:
            rest.append(word)
    if waiting or "" in paths:
        raise UsageError("--plugin needs a file", fix="--plugin ./my_reward.py")
    activate([*active(), *(named(path) for path in paths)])
    return rest


@contextmanager
def opened(path: str | Path) -> Iterator[dict[str, Plugin]]:
    """Name in the module -> plugin object of a file that the user has named, which is active within the block.

    Raises:
        UsageError: it cannot be read. PluginBroken: it cannot be imported, or has no plugin object.
    """
    before, file = active(), named(path)
    try:
        activate([*before, file])
        yield plugins_of(file)
    finally:
        activate(before)


def named(path: str | Path) -> PluginFile:
    """A file that the user has named; from now on settings may name it, too. Raises ``UsageError`` if it cannot be read."""
    file = read(str(path), True, str(path))
    with suppress(OSError):  # a home that cannot be written to: it is named on every command line
        _allowed().mkdir(parents=True, exist_ok=True)
        (_allowed() / file.sha256).touch()
    return file


def _allowed() -> Path:
    return cache_home() / "erniecore" / "plugin-files"


def is_allowed(file: PluginFile) -> bool:
    """Whether the user has named a file with this content before, or the process that started this one has."""
    return file.sha256 in {known.sha256 for known in active()} or (_allowed() / file.sha256).exists()


def read(path: str, named: bool, where: str) -> PluginFile:
    """A file as it is now; ``where``: who names it. Raises ``UsageError`` if it cannot be read."""
    if not path.endswith(".py"):
        raise UsageError(
            "not a Python file", where=where, found=shorten(path), expected="a .py file with a plugin object"
        )
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the plugin file {path}: {error.strerror}", where=where) from error
    return PluginFile(str(Path(path).resolve()), sha256(content).hexdigest(), named)


def plugins_of(file: PluginFile) -> dict[str, Plugin]:
    """Name in the module -> plugin object. Raises ``PluginBroken``."""
    from erniecore.plugin import Plugin

    try:
        module = import_module(file.module)
    except (Exception, SystemExit) as cause:
        message = f"the plugin file cannot be imported: {type(cause).__name__}: {cause}"
        raise PluginBroken(message, where=file.path, fix="repair it; --debug shows the traceback") from cause
    found = {id(value): (name, value) for name, value in vars(module).items() if isinstance(value, Plugin)}
    if not found:
        raise PluginBroken("the file has no plugin object", where=file.path, fix="end it with: plugin = MyPlugin()")
    for name, value in found.values():
        says = (getattr(value, "kind", ""), getattr(value, "name", ""))
        if says[0] not in KINDS or says[0] == "command" or not says[1]:
            kinds = ", ".join(kind for kind in KINDS if kind != "command")
            expected = f"a name, and a kind of {kinds}"
            raise PluginBroken(
                f"the plugin object {name} cannot be used", where=file.path, found=str(says), expected=expected
            )
    return dict(found.values())


class _Loader(SourceFileLoader):
    """Compiles the file whose hash is known, past any cache of compiled code."""

    def __init__(self, file: PluginFile) -> None:
        super().__init__(file.module, file.path)
        self._digest = file.sha256

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path)
        if sha256(source).hexdigest() != self._digest:
            raise ImportError(f"{self.path} was changed after the command had begun")
        code: CodeType = self.source_to_code(source, self.path)
        return code


class _Finder:
    """Finds the modules of the active files, in a process that was started with them, too."""

    @staticmethod
    def find_spec(fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """As of every finder of ``sys.meta_path``."""
        file = next((file for file in active() if file.module == fullname), None)
        return None if file is None else spec_from_file_location(fullname, file.path, loader=_Loader(file))


sys.meta_path.append(_Finder)
