"""The command that brings distributions into this environment, for errors that ask for one.

It depends on how erniecore itself came here, which the installer wrote beside its metadata: the clone of an editable
installation, or the wheel file (``direct_url.json``, PEP 610), and who installed it (``INSTALLER``). pip writes nothing of
``--find-links``; whoever installs so names the directory in pip's settings, and then the plain command works.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution, requires
from pathlib import Path
from urllib.parse import unquote, urlsplit

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KERNELS = "ernie-third-party-kernels"


@dataclass(frozen=True, slots=True)
class Origin:
    """How erniecore was installed.

    Attributes:
        tree: the clone that it was installed from; None if it was not. editable: whether that clone is what runs.
        wheels: the directory of the wheel file; None if it was named to the installer in no such way.
        program: ``pip`` or ``uv``.
    """

    tree: Path | None = None
    editable: bool = False
    wheels: Path | None = None
    program: str = "pip"


def command(requirements: Sequence[str], option: str = "") -> str:
    """What ``install_command`` of the package returns, with the ranges of versions in ``requirements``."""
    origin = origin_of("erniecore")
    tree = origin.tree if origin.editable and not option else None
    if tree is not None and _awaits_make(tree) and all(folder_of(one, tree) for one in requirements):
        here = _shown(tree)
        return "make install" if here == "." else f"make -C {here} install"
    options = [option] if option else []
    if origin.wheels is not None:
        options += ["--find-links", shlex.quote(str(origin.wheels))]
    return " ".join([_installer(origin.program), "install", *options, *_words(requirements, origin)])


def _awaits_make(tree: Path) -> bool:
    """Whether this is the environment of a clone in which `make install` has not run, after `make demo` alone."""
    own = tree / ".venv"
    return Path(sys.prefix) == own and not (own / ".ready").is_file()


def in_clone(names: Sequence[str], tree: Path, *, whole: bool = False) -> list[str]:
    """The folders of a clone that ``pip install -e`` needs for some distributions: their own, and those of what they depend on
    and what is not installed; ``whole``: or is. Names that the clone does not have are left out."""
    found: dict[str, Path] = {}
    waiting = [_name(name) for name in names]
    while waiting:
        name = waiting.pop(0)
        folder = folder_of(name, tree)
        if name in found or folder is None:
            continue
        found[name] = folder
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        needed = map(_name, project.get("dependencies", ()))
        waiting += [other for other in needed if other != "erniecore" and (whole or not _is_installed(other))]
    return [_shown(folder) for folder in found.values()]


def requirement(of: str, name: str) -> str:
    """What the installed distribution ``of`` says of ``name``, in its dependencies or extras: ``paddlepaddle>=3.3,<3.4``; the
    bare name where it says nothing."""
    try:
        texts = requires(of) or []
    except PackageNotFoundError:
        return name
    found = (text.partition(";")[0].replace(" ", "") for text in texts if _name(text) == name)
    return next(found, name)


def origin_of(name: str) -> Origin:
    """How an installed distribution came here."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return Origin()
    program = "uv" if (found.read_text("INSTALLER") or "").strip() == "uv" else "pip"
    url, facts = _direct_url(found)
    if url is None:
        return Origin(program=program)
    if url.suffix == ".whl":
        return Origin(wheels=url.parent, program=program)
    if "dir_info" in facts and (url / "plugins").is_dir():
        return Origin(tree=url, editable=bool(facts["dir_info"].get("editable")), program=program)
    return Origin(program=program)


def folder_of(requirement: str, tree: Path) -> Path | None:
    """The folder of a distribution of ours in a clone."""
    name = _name(requirement)
    if name in ("erniecore", KERNELS):
        folders = [tree if name == "erniecore" else tree / "third_party_kernels"]
    else:
        folders = sorted(tree.glob(f"plugins/*/{name.removeprefix('erniecore-').replace('-', '_')}"))
    return next((f for f in folders if name.startswith("ernie") and (f / "pyproject.toml").is_file()), None)


def _words(requirements: Sequence[str], origin: Origin) -> Iterator[str]:
    """The words after ``pip install``: folders of the clone for what it has, the rest as it is."""
    rest = list(requirements)
    if origin.tree is not None:
        rest = [r for r in requirements if folder_of(r, origin.tree) is None]
        for folder in in_clone(requirements, origin.tree):
            yield from (["-e", folder] if origin.editable else [folder])
    yield from map(shlex.quote, rest)


def _name(requirement: str) -> str:
    """The distribution of a requirement such as ``numpy>=1.26,<3``."""
    found = re.match(r"[\w.-]+", requirement)
    return found[0] if found else requirement


def _is_installed(name: str) -> bool:
    try:
        return bool(distribution(name).metadata["Name"])
    except PackageNotFoundError:
        return False


def _direct_url(found: Distribution) -> tuple[Path | None, dict[str, dict[str, object]]]:
    """The local path in ``direct_url.json``, if there is one, and the whole of it."""
    text = found.read_text("direct_url.json")
    if not text:
        return None, {}
    facts = json.loads(text)
    parts = urlsplit(facts["url"])
    return (Path(unquote(parts.path)) if parts.scheme == "file" else None), facts


def _installer(program: str) -> str:
    """``pip`` or ``uv pip`` as one would type it: by its bare name where that is the one of this environment."""
    if program == "uv" and shutil.which("uv"):
        return "uv pip"
    bare = shutil.which("pip")
    if bare is not None and Path(bare).parent == Path(sys.executable).parent:
        return "pip"
    return f"{_shown(Path(sys.executable))} -m pip"


def _shown(path: Path) -> str:
    """A path for the shell: relative where it lies below the present directory."""
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


if __name__ == "__main__":  # for the Makefile of the clone, which lies in the present directory
    print(" ".join(f"-e ./{folder}" for folder in in_clone(sys.argv[1:], Path.cwd(), whole=True)))
