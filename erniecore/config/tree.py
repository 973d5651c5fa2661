"""A settings tree: values that know where they were written, by section and key.

Every source of settings is such a tree; problems and ``config show`` take their places from it. Nothing here knows
which keys exist or what their values may be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, Union

from erniecore_catalog import retired

from erniecore.config.values import Document, Path
from erniecore.errors import ConfigError, Problem, shorten
from erniecore.kinds import MANY, RUN_KINDS

COMMAND_LINE = "command line"
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value was written. ``argument``: as it was typed on the command line. ``retired``: the retired key under
    which it was written."""

    source: str
    line: int = 0
    argument: str = ""
    retired: str = ""

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source

    def problem(self, key: str, message: str) -> Problem:
        """A problem with what is written here; environment variables name their key themselves."""
        shown = self.argument or ("" if self.source.startswith("environment ") else key)
        return Problem(self.source, self.line, shown, message)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value with its place. ``lines``: of what is inside it; ``text``: as typed, where that was not YAML."""

    value: Any
    place: Place
    lines: Mapping[Path, int] = field(default_factory=dict)
    text: str | None = None


Tree: TypeAlias = dict[str, Union[Leaf, "Tree"]]


def merge(low: Tree, high: Tree) -> Tree:
    """``high`` over ``low``: mappings are merged key by key, everything else is replaced."""
    result = dict(low)
    for key, value in high.items():
        below = result.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            result[key] = merge(below, value)
        elif not (isinstance(below, dict) and isinstance(value, Leaf) and value.value == {}):
            result[key] = value
    return result


def plain(node: Leaf | Tree) -> Any:
    """The values without their places."""
    return node.value if isinstance(node, Leaf) else {key: plain(child) for key, child in node.items()}


def leaves(node: Leaf | Tree, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Leaf]]:
    """Every leaf with its path."""
    if isinstance(node, Leaf):
        yield path, node
    else:
        for key, child in node.items():
            yield from leaves(child, (*path, key))


def place_of(node: Leaf | Tree, path: Sequence[str | int]) -> Place | None:
    """Where the value at ``path`` was written: its own place, or that of the nearest thing around it."""
    for i, step in enumerate(path):
        if isinstance(node, Leaf):
            rest = tuple(path[i:])
            within = (node.lines[rest[:n]] for n in range(len(rest), 0, -1) if rest[:n] in node.lines)
            return Place(node.place.source, next(within, node.place.line), node.place.argument)
        if step not in node:
            break
        node = node[str(step)]
    first = next(iter(leaves(node)), None)
    return first[1].place if first else None


def tree_of(document: Document, source: str) -> Tree:
    """A parsed file as a tree."""

    def build(value: Any, path: Path) -> Leaf | Tree:
        place = Place(source, document.lines.get(path, 0))
        if isinstance(value, dict) and value:
            return {key: build(child, (*path, key)) for key, child in value.items()}
        inside = {p[len(path) :]: line for p, line in document.lines.items() if p[: len(path)] == path and p != path}
        return Leaf(value, place, inside if isinstance(value, list) else {})

    return normal({key: build(value, (key,)) for key, value in document.data.items()})


def normal(tree: Tree) -> Tree:
    """One form for what may be written in several: ``model: NAME``, ``callbacks: [a]``, ``train: a.jsonl``."""
    for old, new in retired.KEYS.items():
        _refuse_both(tree, old, new)
    tree, renames = retired.renamed(tree)
    result: Tree = {}
    for key, node in tree.items():
        if isinstance(node, Leaf) and key in RUN_KINDS and isinstance(node.value, str):
            result[key] = {"name": node}
        elif key in MANY:
            result[key] = _named(node)
        elif key == "data" and isinstance(node, dict):
            result[key] = {k: _sources(v) if k in ("train", "eval") else v for k, v in node.items()}
        elif isinstance(node, Leaf) and node.value is None and key not in RUN_KINDS:
            continue  # a section whose keys are all commented out
        else:
            result[key] = node
    for old, new in renames:
        result = merge(result, retired.nested(new, _marked(retired.value_at(result, new), old)))
    return result


def retired_keys(tree: Tree) -> tuple[str, ...]:
    """A warning for each retired key in each source, of the values that count."""
    found = {(str(leaf.place), leaf.place.retired) for _, leaf in leaves(tree) if leaf.place.retired}
    return tuple(f"{place}: {retired.warning(key, retired.current_key(key))}" for place, key in sorted(found))


def _refuse_both(tree: Tree, old: str, new: str) -> None:
    """Raise ``ConfigError`` where one source has a key in both spellings."""
    node = retired.value_at(tree, old)
    if node is not None and retired.value_at(tree, new) is not None:
        message = f"is the retired spelling of {new}, which is given too; remove it"
        raise ConfigError([(place_of(node, ()) or Place("settings")).problem(old, message)])


def _marked(node: Leaf | Tree | None, old: str) -> Leaf | Tree:
    """``node`` whose places say under which retired key it was written."""
    if isinstance(node, Leaf):
        return replace(node, place=replace(node.place, retired=old))
    return {key: _marked(child, old) for key, child in (node or {}).items()}


def _named(node: Leaf | Tree) -> Leaf | Tree:
    """``[a, {b: {…}}]`` or ``a`` as ``{a: {}, b: {…}}``; an empty section of a named plugin is ``{}``."""
    if isinstance(node, dict):
        return {n: Leaf({}, c.place) if isinstance(c, Leaf) and c.value is None else c for n, c in node.items()}
    items = [node.value] if isinstance(node.value, str) else node.value
    if not isinstance(items, list):
        return node if items is not None else Leaf({}, node.place)
    result: Tree = {}
    for i, item in enumerate(items):
        place = Place(node.place.source, node.lines.get((i,), node.place.line), node.place.argument)
        if isinstance(item, str):
            result[item] = Leaf({}, place)
        elif isinstance(item, dict) and len(item) == 1:
            name, section = next(iter(item.items()))
            document = Document(section or {}, {p[2:]: n for p, n in node.lines.items() if p[:2] == (i, name)})
            result[name] = tree_of(document, place.source) if section else Leaf({}, place)
        else:
            raise ConfigError([place.problem("callbacks", f"must be a name or `name: {{…}}` (got {shorten(item)})")])
    return result


def _sources(node: Leaf | Tree) -> Leaf | Tree:
    """One or several data files as a list of ``{path: …}``."""
    if isinstance(node, dict):
        first = next(leaves(node))[1].place
        lines: dict[Path, int] = {(0, *path): leaf.place.line for path, leaf in leaves(node)}
        return Leaf([plain(node)], first, lines)
    value = [node.value] if isinstance(node.value, str) else node.value
    if not isinstance(value, list):
        return node
    return Leaf([{"path": v} if isinstance(v, str) else v for v in value], node.place, node.lines)
