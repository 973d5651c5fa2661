"""From kind and name to a plugin package: names, then the files as text, then the files on disk. Never overwrites."""

from __future__ import annotations

import keyword
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore import __version__
from erniecore.api import UsageError
from erniecore.api.command import did_you_mean
from erniecore.api.testing import KINDS
from erniecore_conformance.scaffold.kinds import TEMPLATES

if TYPE_CHECKING:
    from importlib.abc import Traversable

_KEBAB = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
#: Longest name: templates keep their line length with it.
LONGEST = 30
_SUFFIX, _PACKAGE = ".jinja", "__package__"


def check_name(kind: str, name: str, taken: Collection[str] = ()) -> None:
    """Raise ``UsageError`` for an unknown kind, a name that is not lower-case kebab, or one that is taken."""
    if kind not in TEMPLATES:
        raise UsageError(
            f"no such kind of plugin: {kind!r}",
            expected="one of " + ", ".join(TEMPLATES),
            fix=did_you_mean(kind, TEMPLATES),
        )
    if not _KEBAB.fullmatch(name) or len(name) > LONGEST or keyword.iskeyword(name):
        close = re.sub(r"[^a-z0-9]+", "-", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()).strip("-")
        usable = close != name and bool(_KEBAB.fullmatch(close)) and len(close) <= LONGEST
        raise UsageError(
            f"{name!r} cannot be the name of a plugin",
            where="--name",
            expected=f"lower-case words joined by hyphens, at most {LONGEST} characters, e.g. focal-loss",
            fix=f"use {close}" if usable else "",
        )
    if name in taken:
        free = next(n for n in _alternatives(name) if n not in taken)
        raise UsageError(f"a {kind} called {name!r} is installed already", where="--name", fix=f"use {free}")


def _alternatives(name: str) -> Iterator[str]:
    yield f"my-{name}"
    yield from (f"{name}-{number}" for number in range(2, 100))


def names_for(kind: str, name: str) -> dict[str, Any]:
    """Every value that the templates use."""
    template = TEMPLATES[kind]
    package = "erniecore_" + name.replace("-", "_")
    major, minor = (int(part) for part in __version__.split(".")[:2])
    return {
        "kind": kind,
        "name": name,
        "article": "an" if kind[0] in "aeiou" else "a",
        "distribution": f"erniecore-{name}",
        "package": package,
        "class_name": "".join(part.capitalize() for part in name.split("-")),
        "model_type": name.replace("-", "_"),
        "main_module": template.main_module,
        "about": template.about,
        "usage": template.usage.format(name=name, package=package),
        "core": f"{major}.{minor}",
        "next_core": f"{major}.{minor + 1}",
        "points": [
            {"group": KINDS[kind].group, "names": [(name, f"{package}.{template.main_module}:{template.attribute}")]}
        ],
        "plugins": [{"kind": kind, "name": name, "suffix": ""}],
    }


def render(kind: str, name: str) -> dict[str, str]:
    """Path inside the new package (with ``/``) -> text of the file, by path. Raises ``UsageError`` for bad names."""
    check_name(kind, name)
    return rendered(("common", kind), names_for(kind, name))


def rendered(folders: Iterable[str], values: Mapping[str, Any]) -> dict[str, str]:
    """The templates of some folders with these values, as :func:`render` has them."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    found: dict[str, str] = {}
    for folder in folders:
        for path, source in _templates(files("erniecore_conformance.scaffold") / "templates" / folder):
            target = path.replace(_PACKAGE, values["package"])
            found[target] = environment.from_string(source).render(values)
    return dict(sorted(found.items()))


def _templates(folder: Traversable, base: str = "") -> Iterator[tuple[str, str]]:
    """Paths without the suffix, and sources."""
    for item in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if item.is_dir():
            yield from _templates(item, f"{base}{item.name}/")
        elif item.name.endswith(_SUFFIX):
            yield base + item.name.removesuffix(_SUFFIX), item.read_text(encoding="utf-8")


def default_folder(kind: str, name: str, start: Path) -> Path:
    """Where a new package goes when nobody says: ``plugins/<kind>/<name>`` of the repository of erniecore that ``start`` is
    in, else ``erniecore-<name>`` in ``start``; relative to ``start``."""
    for folder in (start, *start.parents):
        if (folder / "plugins").is_dir() and (folder / "erniecore" / "kinds.py").is_file():
            home = folder / "plugins" / KINDS[kind].group.removeprefix("erniecore.") / name.replace("-", "_")
            return Path(os.path.relpath(home, start))
    return Path(f"erniecore-{name}")


def write(kind: str, name: str, out: Path) -> list[Path]:
    """Write the package into ``out``, which must not exist or be empty; returns what was written.

    Raises:
        UsageError: a bad name, or something is at ``out``.
    """
    return write_files(render(kind, name), out)


def write_files(texts: Mapping[str, str], out: Path) -> list[Path]:
    """Write files into ``out``, which must not exist or be empty; as :func:`write`."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError("there is something already; nothing is overwritten", where=str(out), fix="name another --out")
    written = []
    for relative, text in texts.items():
        path = out / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
        written.append(path)
    return written
