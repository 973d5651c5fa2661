"""What is wrong with settings, said to the person who wrote them.

Pydantic's own messages appear only for errors that the table below does not know.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_args

from erniecore_catalog.known import synonyms
from pydantic import BaseModel, TypeAdapter, ValidationError

from erniecore import registry
from erniecore.config.core import CORE_SECTIONS
from erniecore.config.selection import Selection
from erniecore.config.settings import SECTIONS, own_keys, plain_name
from erniecore.config.strict import strict
from erniecore.config.tree import COMMAND_LINE, Leaf, Place, Tree, leaves, place_of, plain
from erniecore.errors import ConfigError, Problem, nearest, shorten
from erniecore.kinds import KINDS, MANY, RUN_KINDS
from erniecore.sections import Section

#: pydantic's error type -> our message; ``c`` is the error's context
MESSAGES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "greater_than_equal": lambda c: f"must be ≥ {c['ge']:g}",
    "greater_than": lambda c: f"must be > {c['gt']:g}",
    "less_than_equal": lambda c: f"must be ≤ {c['le']:g}",
    "less_than": lambda c: f"must be < {c['lt']:g}",
    "multiple_of": lambda c: f"must be a multiple of {c['multiple_of']:g}",
    "literal_error": lambda c: f"must be one of {c['expected'].replace(chr(39), '').replace(' or ', ', ')}",
    "enum": lambda c: f"must be one of {c['expected'].replace(chr(39), '').replace(' or ', ', ')}",
    "int_type": lambda c: "must be an integer",
    "int_from_float": lambda c: "must be an integer",
    "float_type": lambda c: "must be a number",
    "finite_number": lambda c: "must be a finite number",
    "number_inside": lambda c: "must be a finite number",
    "bool_type": lambda c: "must be true or false",
    "string_type": lambda c: "must be text; write it in quotes",
    "missing": lambda c: "is required",
    "model_type": lambda c: "must be a mapping",
    "model_attributes_type": lambda c: "must be a mapping",
    "dict_type": lambda c: "must be a mapping",
    "list_type": lambda c: "must be a list",
    "tuple_type": lambda c: "must be a list",
    "string_pattern_mismatch": lambda c: f"must match {c['pattern']}",
    "string_too_short": lambda c: f"must have at least {c['min_length']} characters",
    "string_too_long": lambda c: f"must have at most {c['max_length']} characters",
    "too_short": lambda c: f"must have at least {c['min_length']} items",
    "too_long": lambda c: f"must have at most {c['max_length']} items",
    "value_error": lambda c: str(c["error"]),
    "assertion_error": lambda c: str(c["error"]),
}
#: errors that are about the whole section: showing the input would repeat the file
_NO_INPUT = {"missing", "value_error", "assertion_error"}


class Known:
    """All keys of the composed settings, for suggestions; ``elsewhere``: what to say of a key of a plugin that is not
    selected."""

    def __init__(self, keys: Iterable[str], elsewhere: Callable[[str], str] = lambda key: "") -> None:
        self.keys = list(keys)
        self.elsewhere = elsewhere

    def unknown(self, key: str) -> str:
        """The message for an unknown key."""
        message, close = self.elsewhere(key), self.suggest(key)
        if message and close and close.rpartition(".")[2] != key.rpartition(".")[2]:
            close = None
        return (message or "unknown key") + (f"; did you mean {close}?" if close else "")

    def suggest(self, key: str) -> str | None:
        """The nearest key: the one that others call so, a misspelling in the same section, the same name in another, then
        anything similar."""
        section, _, name = key.rpartition(".")
        ours = synonyms().get(name.lower().replace("-", "_"))
        if ours in self.keys and key not in self.keys:
            return ours
        beside = {k.rpartition(".")[2]: k for k in self.keys if k.rpartition(".")[0] == section}
        close = nearest(name, beside, cutoff=0.7)
        if close:
            return beside[close]
        same = [k for k in self.keys if k.rpartition(".")[2] == name]
        if same:
            return nearest(key, same, cutoff=0.0) if section else same[0]
        by_name = {k.rpartition(".")[2]: k for k in reversed(self.keys)}
        close = nearest(key, self.keys, cutoff=0.8)
        return close or by_name.get(nearest(name, by_name, cutoff=0.8) or "")


def section_from(cls: type[Section], node: Leaf | Tree, key: str = "") -> Section:
    """A section that stands alone; ``key``: what is shown before its keys. Raises ``ConfigError``."""
    try:
        section: Section = strict(TypeAdapter(cls), node)
    except ValidationError as error:
        known = Known(f"{key}.{name}".lstrip(".") for name in cls.model_fields)
        raise ConfigError([problem(cls, node, key, e, known) for e in error.errors(include_url=False)]) from None
    return section


def problem(cls: type[BaseModel], node: Leaf | Tree, key: str, error: Any, known: Known) -> Problem:
    """One of pydantic's errors about the section ``cls`` at ``key``, as our message with its place."""
    if error["type"] == "number_inside":
        error = {**error, "loc": (*error["loc"], *error["ctx"]["keys"]), "input": error["ctx"]["value"]}
    loc = _real_path(plain(node), error["loc"])
    name = (key + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in loc)).lstrip(".")
    place = place_of(node, loc) or Place(COMMAND_LINE)
    if error["type"] == "extra_forbidden":
        message = _unknown_inside(cls, loc, name) if len(loc) > 1 else known.unknown(name)
        if not place.line and _inside_a_value(node, loc):
            message = f"{name}: {message}"
        return place.problem(name, message + ("" if place.argument else _got(place, error["input"])))
    wording = MESSAGES.get(error["type"])
    message = wording(error.get("ctx", {})) if wording else error["msg"][:1].lower() + error["msg"][1:]
    if error["type"] == "literal_error" and isinstance(error["input"], str):
        close = nearest(error["input"], error["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", "))
        message += f"; did you mean {close}?" if close else ""
    if place.argument and message == "must be a mapping":
        message += f"; set one of its keys: {name}.KEY=VALUE"
    # what was typed names something else, or only the value that this is a part of
    if (error["type"] == "missing" and place.argument) or (not place.line and _inside_a_value(node, loc)):
        message = f"{name} {message}"
    if error["type"] not in _NO_INPUT:
        message += f" (got {shorten(error['input'])})"
    return place.problem(name, message)


def _inside_a_value(node: Leaf | Tree, loc: Sequence[str | int]) -> bool:
    """Whether ``loc`` goes on inside a value that was written as one, such as a list on the command line."""
    for step in loc:
        if isinstance(node, Leaf):
            return True
        if step not in node:
            return False
        node = node[str(step)]
    return False


def _got(place: Place, value: Any) -> str:
    """The value of an unknown key, for files only: elsewhere the user has just typed it."""
    return f" (got {shorten(value)})" if place.line and not isinstance(value, dict) else ""


def _real_path(data: Any, loc: Iterable[Any]) -> tuple[str | int, ...]:
    """``loc`` without the names of union members, which pydantic puts between keys."""
    path: list[str | int] = []
    for step in loc:
        if (isinstance(data, dict) and step in data) or (
            isinstance(data, list) and isinstance(step, int) and step < len(data)
        ):
            data = data[step]
        elif isinstance(data, dict) and isinstance(step, str) and "[" not in step and "-" not in step:
            data = None  # a missing key
        else:
            continue
        path.append(step)
    return tuple(path)


def _unknown_inside(cls: type[BaseModel], loc: tuple[str | int, ...], name: str) -> str:
    """The message for an unknown key of a list item or sub-section, from the fields of that class."""
    annotation: Any = cls.model_fields[str(loc[0])].annotation if loc[0] in cls.model_fields else None
    fields = [f for model in _models(annotation) for f in model.model_fields]
    close = nearest(str(loc[-1]), fields)
    return f"unknown key; did you mean {name.rpartition('.')[0]}.{close}?" if close else "unknown key"


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Every model class in an annotation."""
    if typing.get_origin(annotation) is None:
        return [annotation] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []
    return [model for argument in get_args(annotation) for model in _models(argument)]


def unknown_section(name: str, node: Leaf | Tree, known: Known) -> list[Problem]:
    """Problems for a section that does not exist: one per file, one per argument or variable elsewhere."""
    found: list[Problem] = []
    files: set[str] = set()
    sections = (*CORE_SECTIONS, *RUN_KINDS, *MANY)
    for path, leaf in leaves(node, (name,)):
        key, place = ".".join(path), leaf.place
        if not place.line or len(path) == 1:
            found.append(place.problem(key, known.unknown(key) + ("" if place.argument else _got(place, leaf.value))))
        elif place.source not in files:
            close = nearest(name, sections)
            hint = f"; did you mean {close}?" if close else f"; sections are {', '.join(sections)}"
            found.append(place.problem(key, f"unknown section {name}{hint}"))
            files.add(place.source)
    return found


def problems_of(chosen: Selection, errors: Iterable[Any]) -> list[Problem]:
    """Everything that is wrong with the keys and values of a selection; ``errors``: pydantic's about the composed class."""
    known = Known(known_keys(chosen.plugins), lambda key: _elsewhere(key, chosen))
    found = [p for kind in RUN_KINDS if kind not in chosen.plugins for p in _unselected(kind, chosen.tree.get(kind))]
    for name, node in chosen.tree.items():
        if name not in SECTIONS:
            found += unknown_section(name, node, known)
    return found + _invalid(errors, chosen.tree, chosen.plugins, known)


def _invalid(errors: Iterable[Any], tree: Tree, plugins: Mapping[str, Any], known: Known) -> list[Problem]:
    """pydantic's errors about a composed class as problems with their places in ``tree``."""
    found: list[Problem] = []
    for error in errors:
        name, *loc = error["loc"]
        node = own_keys(name, tree.get(name, {}))
        if name in MANY and not loc:
            leaf = tree[name]
            assert isinstance(leaf, Leaf)
            found.append(leaf.place.problem(name, f"must be names or a mapping by name (got {leaf.value!r})"))
        elif name in MANY:
            cls = next(p.Config for p in plugins[MANY[name]] if p.name == loc[0])
            child = node.get(loc[0], {}) if isinstance(node, dict) else {}
            found.append(problem(cls, child, f"{name}.{loc[0]}", {**error, "loc": tuple(loc[1:])}, known))
        elif name in SECTIONS:
            cls = CORE_SECTIONS[name] if name in CORE_SECTIONS else plugins[name].Config
            found.append(problem(cls, node, name, {**error, "loc": tuple(loc)}, known))
    return found


def known_keys(plugins: Mapping[str, Any]) -> list[str]:
    """Every ``section.key`` of a selection of plugins."""
    keys = [f"{name}.{f}" for name, cls in CORE_SECTIONS.items() for f in cls.model_fields]
    for kind in RUN_KINDS:
        if kind in plugins:
            keys += [f"{kind}.name", *(f"{kind}.{f}" for f in plugins[kind].Config.model_fields)]
    for section, kind in MANY.items():
        keys += [f"{section}.{p.name}.{f}" for p in plugins.get(kind, ()) for f in p.Config.model_fields]
    return keys


def _unselected(kind: str, node: Leaf | Tree | None) -> list[Problem]:
    """Keys below a kind that has no plugin; one problem per key."""
    if node is None or KINDS[kind].required:  # reported already: nobody chose one
        return []
    message = f"belongs to {kind} plugins; none is selected, add {KINDS[kind].flag} NAME"
    return [
        leaf.place.problem(".".join(path), message)
        for path, leaf in leaves(node, (kind,))
        if not (path == (kind,) and leaf.value in (None, {})) and path != (kind, "name")
    ]


def _elsewhere(key: str, chosen: Selection) -> str:
    """What to say of an unknown key that another plugin of the same kind has; empty: nothing."""
    kind, _, name = key.partition(".")
    if kind not in chosen.names:
        return ""
    having = [plugin.name for plugin in registry.loadable(kind) if name in plugin.Config.model_fields]
    if not having or plain_name(chosen.names[kind]) in having:
        return ""
    owners = " or ".join(having[:6]) + " …" * (len(having) > 6)
    return f"belongs to {kind} {owners}; selected is {chosen.names[kind]} ({KINDS[kind].flag} chooses)"
