"""Where settings come from: the environment, flags and ``section.key=value``; files are in ``files.py``.

Each is a source of pydantic-settings, which asks them from the highest to the lowest and merges what they give.
Unlike the library's own sources they know the file and line of every value, and report names that nobody knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from erniecore_catalog import retired
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from erniecore.config.tree import COMMAND_LINE, Leaf, Place, Tree, leaves, merge, normal
from erniecore.config.values import plain_scalar
from erniecore.errors import ConfigError, Problem, UsageError, did_you_mean, shorten
from erniecore.kinds import FLAG_KINDS, MANY, RUN_KINDS

#: Environment variables of the tests and benchmarks.
_OF_TESTS = (
    "ERNIE_REAL_DATA",
    "ERNIE_HF_PYTHON",
    "ERNIE_LLAMA_CPP_PYTHON",
    "ERNIE_WRITE_GOLDEN",
    "ERNIE_BENCH_HF",
    "ERNIE_ENVIRONMENT",
    "ERNIE_BENCH_PF",
)
#: Environment variables that start with ERNIE_ and are not settings.
NOT_SETTINGS = ("ERNIE_API_KEY", "ERNIE_PLUGINS", "ERNIE_PLUGIN_FILES", "ERNIE_DEBUG", "ERNIE_FOLLOW_LINKS", *_OF_TESTS)
#: Flags whose setting is not called as the flag is.
FLAGS: dict[str, tuple[str, ...]] = {
    **{kind.name: tuple((kind.sets or kind.section).split(".")) for kind in FLAG_KINDS},
    "data": ("data", "train"),
    "eval_data": ("data", "eval"),
    "out": ("run", "out"),
    "resume": ("run", "resume"),
    "seed": ("run", "seed"),
    **{name: ("launcher", name) for name in ("nproc", "nodes", "node_rank", "master", "restarts")},
}


class Sourced(BaseSettings):
    """Settings that are read from the sources given as ``sources=``, highest first, and from nothing else."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What is given by name above ``sources``; :class:`EnvironmentSource` replaces the library's own, which
        ignores unknown names."""
        assert isinstance(init_settings, InitSettingsSource)
        return init_settings, *init_settings.init_kwargs.pop("sources", ())


class Written(Sourced):
    """What the sources say, merged by pydantic-settings and not validated."""

    model_config = SettingsConfigDict(extra="allow")


class EmptyMapping(dict[str, Any]):
    """``{}`` as somebody wrote it: merging keeps what other sources have below it, and its place stays known."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place


class Source(PydanticBaseSettingsSource):
    """A source of settings whose values know where they were written; one class for each source. ``complete``: it has
    another toolkit's defaults."""

    complete = False

    def __init__(self, tree: Tree) -> None:
        super().__init__(Written)
        self.tree = tree

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """A section as it was written."""
        return self.tree.get(field_name), field_name, True

    def __call__(self) -> Tree:
        """The tree, without what a higher source replaces by a value: two mappings with a value between them are not
        merged."""
        tree: Tree = {key: _mapping(node) for key, node in self.tree.items()}
        for above in self.settings_sources_data.values():
            tree = _without(tree, above)
        return tree


def _mapping(node: Leaf | Tree) -> Leaf | Tree:
    if isinstance(node, Leaf):
        return EmptyMapping(node.place) if node.value == {} else node
    return {key: _mapping(child) for key, child in node.items()}


def _without(tree: Tree, above: Mapping[str, Any]) -> Tree:
    kept: Tree = {}
    for key, node in tree.items():
        over = above.get(key)
        if isinstance(over, Leaf) or (isinstance(over, dict) and isinstance(node, EmptyMapping)):
            continue
        kept[key] = _without(node, over) if isinstance(over, dict) and isinstance(node, dict) else node
    return kept


class Read(NamedTuple):
    """What the user wrote.

    Attributes:
        sources: from the highest to the lowest. problems: environment variables that are no settings.
        notes: as in ``LoadedSettings``. advice: as in ``Imported``.
    """

    sources: tuple[Source, ...]
    problems: list[Problem]
    notes: tuple[str, ...] = ()
    advice: Mapping[str, str] = MappingProxyType({})


def merged(sources: Iterable[Source]) -> Tree:
    """What several sources say, the highest first."""

    def restored(node: Any) -> Leaf | Tree:
        if isinstance(node, EmptyMapping):
            return Leaf({}, node.place)
        return node if isinstance(node, Leaf) else {key: restored(child) for key, child in node.items()}

    written: Any = Written
    return {key: restored(node) for key, node in (written(sources=tuple(sources)).model_extra or {}).items()}


class EnvironmentSource(Source):
    """``ERNIE_SECTION__KEY`` variables; ``problems``: names that are neither settings nor otherwise known."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        tree, self.problems = from_environment(environ)
        super().__init__(tree)


class FlagSource(Source):
    """Flags, by their name without dashes; ``None`` and empty lists are absent."""

    def __init__(self, flags: Mapping[str, Any]) -> None:
        super().__init__(from_flags(flags))


class OverrideSource(Source):
    """The ``section.key=value`` arguments of a command line."""


class DirectorySource(Source):
    """The model plugin, the path and the quantizer that a model directory stands for."""


class PluginDefaultSource(Source):
    """What a method has instead of the core's defaults."""


class DefaultSource(Source):
    """Sections of the core and of the chosen plugins; their classes hold the defaults."""


def command_line(overrides: Sequence[str], flags: Mapping[str, Any]) -> tuple[OverrideSource, FlagSource]:
    """The two sources of a command line.

    Raises ``UsageError`` for an argument that is not ``section.key=value``, and for one that contradicts a flag.
    """
    given = FlagSource(flags)
    return OverrideSource(from_overrides(overrides, given.tree)), given


def from_environment(environ: Mapping[str, str]) -> tuple[Tree, list[Problem]]:
    """``ERNIE_SECTION__KEY`` variables, and the ``ERNIE_`` names that are neither settings nor otherwise known."""
    tree: Tree = {}
    problems: list[Problem] = []
    for name in sorted(n for n in environ if n.startswith("ERNIE_") and n not in NOT_SETTINGS):
        place = Place(f"environment {name}")
        path = name.removeprefix("ERNIE_").lower().split("__")
        section = retired.current_key(path[0])
        if not all(path) or (len(path) == 1 and section not in (*RUN_KINDS, *MANY)):
            known = [*NOT_SETTINGS, *(f"ERNIE_{s.upper()}" for s in (*RUN_KINDS, *MANY))]
            hint = did_you_mean(name, known, "settings are ERNIE_SECTION__KEY", cutoff=0.8)
            problems.append(place.problem("", f"unknown name; {hint}"))
            continue
        leaf = Leaf(parse_value(environ[name], place.source), place, text=environ[name])
        tree = merge(tree, normal(_nested(path, leaf)))
    return tree, problems


def from_flags(flags: Mapping[str, Any]) -> Tree:
    """Flags, by their name without dashes, as a tree; ``None`` and empty lists are absent."""
    tree: Tree = {}
    for flag, value in flags.items():
        if value is None or value in ([], ()):
            continue
        value = list(value) if isinstance(value, tuple) else value
        leaf = Leaf(value, Place(COMMAND_LINE, argument=f"--{flag.replace('_', '-')}"))
        tree = merge(tree, normal(_nested(FLAGS.get(flag, (flag,)), leaf)))
    return tree


def from_overrides(overrides: Sequence[str], flags: Tree) -> Tree:
    """``section.key=value`` arguments as a tree.

    Raises ``UsageError`` for an argument of another form, and for one that contradicts a flag.
    """
    tree: Tree = {}
    for argument in overrides:
        path, leaf = _typed(
            argument,
            "a settings file nor section.key=value",
            "give one YAML file, then settings such as train.max_steps=10",
        )
        more = normal(_nested(path, leaf))
        _refuse_contradiction(flags, more, argument)
        tree = merge(tree, more)
    return tree


def from_arguments(arguments: Sequence[str]) -> Tree:
    """``key=value`` arguments of one section. Raises ``UsageError`` for one of another form."""
    tree: Tree = {}
    for argument in arguments:
        tree = merge(tree, _nested(*_typed(argument, "an option nor key=value", "give settings such as port=8080")))
    return tree


def parse_value(text: str, source: str) -> Any:
    """The value in ``section.key=value`` or an environment variable.

    Lists, mappings and quoted text are YAML; everything else is one unquoted scalar, whatever it holds
    (``C:/x: y`` and ``#1`` are text). Nothing at all is empty text. Raises ``ConfigError``.
    """
    stripped = text.strip()
    if stripped[:1] in ("[", "{", '"', "'"):
        from erniecore.config.yaml import parse_any

        return parse_any(stripped, source)
    try:
        return plain_scalar(stripped) if stripped else ""
    except ValueError as error:  # Python's limit for the digits of an integer
        raise ConfigError([Problem(source, 0, "", str(error))]) from error


def _typed(argument: str, neither: str, fix: str) -> tuple[list[str], Leaf]:
    """Path and value of ``some.key=value``."""
    key, equals, text = argument.partition("=")
    path = key.strip().split(".")
    if not equals or not all(re.fullmatch(r"[\w-]+", part) for part in path):
        raise UsageError(f"{argument!r} is neither {neither}", fix=fix)
    leaf = Leaf(parse_value(text, f"{COMMAND_LINE}: {argument}"), Place(COMMAND_LINE, argument=argument), text=text)
    return path, leaf


def _refuse_contradiction(flags: Tree, more: Tree, argument: str) -> None:
    """Raise ``UsageError`` when a flag already set what ``argument`` sets: neither is the one that counts."""
    given = dict(leaves(flags))
    for path, leaf in leaves(more):
        if path in given and given[path].value != leaf.value:
            flag = given[path].place.argument
            raise UsageError(
                f"{flag} and {argument} contradict each other", found=shorten(given[path].value), fix="give one"
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
