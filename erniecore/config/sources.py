"""Where settings come from: files with ``extends``, the environment, flags and ``section.key=value``.

Each source becomes a tree of leaves that know their place; trees are merged from low to high. Nothing here knows
which keys exist or what their values may be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, Union

from erniecore.config import yaml
from erniecore.errors import ConfigError, Problem, UsageError, did_you_mean, nearest, shorten
from erniecore.kinds import KINDS, RUN_KINDS

COMMAND_LINE = "command line"
DEFAULT = "default"
#: Environment variables that start with ERNIE_ and are not settings.
NOT_SETTINGS = ("ERNIE_PLUGINS", "ERNIE_REAL_DATA", "ERNIE_DEBUG")
#: Sections with one sub-section per plugin: name in the settings -> kind.
MANY = {f"{kind.name}s": kind.name for kind in KINDS.values() if kind.many}
#: Flags whose setting is not called as the flag is.
FLAGS: dict[str, tuple[str, ...]] = {
    "data": ("data", "train"),
    "eval_data": ("data", "eval"),
    "format": ("data", "format"),
    "out": ("run", "out"),
    "resume": ("run", "resume"),
    "seed": ("run", "seed"),
    "callback": ("callbacks",),
    "scorer": ("scorers",),
}
MAX_EXTENDS = 16


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value was written. ``word``: as it was typed on the command line."""

    source: str
    line: int = 0
    word: str = ""

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source

    def problem(self, key: str, message: str) -> Problem:
        """A problem with what is written here; environment variables name their key themselves."""
        shown = self.word or ("" if self.source.startswith("environment ") else key)
        return Problem(self.source, self.line, shown, message)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value with its place. ``lines``: of what is inside it; ``text``: as typed, where that was not YAML."""

    value: Any
    place: Place
    lines: Mapping[yaml.Path, int] = field(default_factory=dict)
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
            return Place(node.place.source, next(within, node.place.line), node.place.word)
        if step not in node:
            break
        node = node[str(step)]
    first = next(iter(leaves(node)), None)
    return first[1].place if first else None


def tree_of(document: yaml.Document, source: str) -> Tree:
    """A parsed file as a tree."""

    def build(value: Any, path: yaml.Path) -> Leaf | Tree:
        place = Place(source, document.lines.get(path, 0))
        if isinstance(value, dict) and value:
            return {key: build(child, (*path, key)) for key, child in value.items()}
        inside = {p[len(path) :]: line for p, line in document.lines.items() if p[: len(path)] == path and p != path}
        return Leaf(value, place, inside if isinstance(value, list) else {})

    return normal({key: build(value, (key,)) for key, value in document.data.items()})


def normal(tree: Tree) -> Tree:
    """One form for what may be written in several: ``model: NAME``, ``callbacks: [a]``, ``train: a.jsonl``."""
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
    return result


def _named(node: Leaf | Tree) -> Leaf | Tree:
    """``[a, {b: {…}}]`` or ``a`` as ``{a: {}, b: {…}}``; an empty section of a named plugin is ``{}``."""
    if isinstance(node, dict):
        return {n: Leaf({}, c.place) if isinstance(c, Leaf) and c.value is None else c for n, c in node.items()}
    items = [node.value] if isinstance(node.value, str) else node.value
    if not isinstance(items, list):
        return node if items is not None else Leaf({}, node.place)
    result: Tree = {}
    for i, item in enumerate(items):
        place = Place(node.place.source, node.lines.get((i,), node.place.line), node.place.word)
        if isinstance(item, str):
            result[item] = Leaf({}, place)
        elif isinstance(item, dict) and len(item) == 1:
            name, section = next(iter(item.items()))
            document = yaml.Document(section or {}, {p[2:]: n for p, n in node.lines.items() if p[:2] == (i, name)})
            result[name] = tree_of(document, place.source) if section else Leaf({}, place)
        else:
            raise ConfigError([place.problem("callbacks", f"must be a name or `name: {{…}}` (got {shorten(item)})")])
    return result


def _sources(node: Leaf | Tree) -> Leaf | Tree:
    """One or several data files as a list of ``{path: …}``."""
    if isinstance(node, dict):
        first = next(leaves(node))[1].place
        lines: dict[yaml.Path, int] = {(0, *path): leaf.place.line for path, leaf in leaves(node)}
        return Leaf([plain(node)], first, lines)
    value = [node.value] if isinstance(node.value, str) else node.value
    if not isinstance(value, list):
        return node
    return Leaf([{"path": v} if isinstance(v, str) else v for v in value], node.place, node.lines)


def read_file(path: Path, shown: str = "", above: tuple[Path, ...] = ()) -> Tree:
    """A settings file over the files that it ``extends`` (relative to it).

    Raises:
        UsageError: the file cannot be read, is an ERNIEKit file, or extends itself.
        ConfigError: it is not valid YAML.
    """
    shown, real = shown or str(path), path.resolve()
    if real in above or len(above) >= MAX_EXTENDS:
        chain = " -> ".join(p.name for p in (*above, real))
        raise UsageError("files extend each other in a circle" if real in above else "too many extends", found=chain)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(f"cannot read the settings file: {reason}", where=shown, fix=_instead(path)) from error
    document = yaml.parse(text, shown)
    _refuse_erniekit(document.data, shown)
    parents = document.data.pop("extends", None) or []
    parents = [parents] if isinstance(parents, str) else parents
    if not isinstance(parents, list) or not all(isinstance(p, str) for p in parents):
        message = f"must be a file or a list of files (got {shorten(parents)})"
        raise ConfigError([Problem(shown, document.lines[("extends",)], "extends", message)])
    tree: Tree = {}
    for parent in parents:
        parent_path = path.parent / parent
        if not parent_path.is_file():
            message = f"no such file: {parent_path}"
            raise ConfigError([Problem(shown, document.lines[("extends",)], "extends", message)])
        tree = merge(tree, read_file(parent_path, above=(*above, real)))
    return merge(tree, tree_of(document, shown))


def _instead(path: Path) -> str:
    """What may have been meant by a settings file that cannot be read."""
    if (path.parent / "config.json").is_file():
        return f"{path.parent} is a model directory: --model {path.parent}"
    beside = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    close = nearest(path.name, beside)
    return f"did you mean {path.parent / close}?" if close and close != path.name else ""


def is_erniekit_file(path: Path) -> bool:
    """Whether a file holds settings of ERNIEKit; False for one that cannot be read."""
    from erniecore.migration.erniekit.reading import is_erniekit

    try:
        return is_erniekit(yaml.parse(path.read_text(encoding="utf-8"), str(path)).data)
    except (OSError, UnicodeDecodeError, ConfigError):
        return False


def _refuse_erniekit(data: Mapping[str, Any], source: str) -> None:
    from erniecore.migration.erniekit.reading import is_erniekit

    if is_erniekit(data):
        raise UsageError(
            "this is an ERNIEKit file; only `ernie run FILE` converts one, others cannot extend it",
            where=source,
            next=f"ernie config import {source} --out NEW.yaml",
            code="ERN-C011",
        )


def from_environment(environ: Mapping[str, str]) -> tuple[Tree, list[Problem]]:
    """``ERNIE_SECTION__KEY`` variables, and the ``ERNIE_`` names that are neither settings nor otherwise known."""
    tree: Tree = {}
    problems: list[Problem] = []
    for name in sorted(n for n in environ if n.startswith("ERNIE_") and n not in NOT_SETTINGS):
        place = Place(f"environment {name}")
        path = name.removeprefix("ERNIE_").lower().split("__")
        if not all(path) or (len(path) == 1 and path[0] not in (*RUN_KINDS, *MANY)):
            known = [*NOT_SETTINGS, *(f"ERNIE_{s.upper()}" for s in (*RUN_KINDS, *MANY))]
            hint = did_you_mean(name, known, "settings are ERNIE_SECTION__KEY", cutoff=0.8)
            problems.append(place.problem("", f"unknown name; {hint}"))
            continue
        leaf = Leaf(yaml.parse_value(environ[name], place.source), place, text=environ[name])
        tree = merge(tree, normal(_nested(path, leaf)))
    return tree, problems


def from_command_line(overrides: Sequence[str], flags: Mapping[str, Any]) -> Tree:
    """Flags (by their word without dashes; ``None`` and empty lists are absent), then ``section.key=value`` words.

    Raises ``UsageError`` for a word that is not ``section.key=value``, and for one that contradicts a flag.
    """
    tree: Tree = {}
    for flag, value in flags.items():
        if value is None or value in ([], ()):
            continue
        value = list(value) if isinstance(value, tuple) else value
        leaf = Leaf(value, Place(COMMAND_LINE, word=f"--{flag.replace('_', '-')}"))
        tree = merge(tree, normal(_nested(FLAGS.get(flag, (flag,)), leaf)))
    for word in overrides:
        path, leaf = _typed(
            word,
            "a settings file nor section.key=value",
            "give one YAML file, then settings such as train.max_steps=10",
        )
        more = normal(_nested(path, leaf))
        _refuse_contradiction(tree, more, word)
        tree = merge(tree, more)
    return tree


def from_words(words: Sequence[str]) -> Tree:
    """``key=value`` words of one section. Raises ``UsageError`` for a word that is none."""
    tree: Tree = {}
    for word in words:
        tree = merge(tree, _nested(*_typed(word, "an option nor key=value", "give settings such as port=8080")))
    return tree


def _typed(word: str, neither: str, fix: str) -> tuple[list[str], Leaf]:
    """Path and value of ``some.key=value``."""
    key, equals, text = word.partition("=")
    path = key.strip().split(".")
    if not equals or not all(re.fullmatch(r"[\w-]+", part) for part in path):
        raise UsageError(f"{word!r} is neither {neither}", fix=fix)
    leaf = Leaf(yaml.parse_value(text, f"{COMMAND_LINE}: {word}"), Place(COMMAND_LINE, word=word), text=text)
    return path, leaf


def _refuse_contradiction(tree: Tree, more: Tree, word: str) -> None:
    """Raise ``UsageError`` when a flag already set what ``word`` sets: neither is the one that counts."""
    flags = {path: leaf for path, leaf in leaves(tree) if leaf.place.word.startswith("--")}
    for path, leaf in leaves(more):
        if path in flags and flags[path].value != leaf.value:
            flag = flags[path].place.word
            raise UsageError(
                f"{flag} and {word} contradict each other", found=shorten(flags[path].value), fix="give one"
            )


def _nested(path: Sequence[str], leaf: Leaf) -> Tree:
    node: Leaf | Tree = _spread(leaf)
    for key in reversed(path):
        node = {key: node}
    assert isinstance(node, dict)
    return node


def _spread(leaf: Leaf) -> Leaf | Tree:
    """A mapping given as one value, as a tree of its own."""
    if not isinstance(leaf.value, dict) or not leaf.value:
        return leaf
    return {key: _spread(Leaf(value, leaf.place)) for key, value in leaf.value.items()}
