"""The form of a new run: its fields, made of the sections of the core and of the chosen plugins.

A field shows what ``ernie config explain`` says of its key. What is written stays in the text of the settings alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from erniecore.api import install_command
from erniecore.api.adapter import AdapterPlugin
from erniecore.api.installation import entries, installed, known, loadable
from erniecore.api.method import MethodCapability, MethodPlugin
from erniecore.api.model import ModelConfig
from erniecore.api.settings import CORE_SECTIONS, KINDS, MANY, RUN_KINDS, SCHEDULES, Explanation, section_keys
from erniecore_webui.yaml_edits import flat, names_of, scalar, value_at

#: the fields that are not folded
BASIC = (
    "model.path", "method.name", "adapter.name", "quantizer.name", "device.name", "parallel.name", "rewards", "data.train",
    "data.eval", "data.format", "data.max_seq_len", "train.epochs", "train.max_steps", "train.batch_size", "train.accumulation",
    "train.learning_rate", "train.warmup_ratio", "optimizer.name", "train.schedule", "callbacks", "eval.every",
    "checkpoint.every",
)  # fmt: skip
#: what the page itself says
_OURS = ("run.out", "run.name", "run.resume")
#: keys whose values are names of plugins of a kind, with those that are built in
_NAMES = {"train.schedule": ("schedule", SCHEDULES), "data.format": ("format", ())}
#: kinds of which a run may have several that are named in their section alone
_NAMED = ("callbacks", "rewards")
_CHOICE = re.compile(r"(list of )?one of (`[^`]*`(?:, `[^`]*`)*)(?: or nothing)?")
_FLAG = re.compile(r"true or false(?: or nothing)?")
_UNIT = (
    r"(?i:tokens|steps|micro-batches|sequences|samples|completions|frames per second|frames|patches|pixels|passes over the data|"
    r"seconds|minutes|bytes|processes|threads|ranks|nodes|layers|checkpoints)\b"
)
#: descriptions begin with the unit, or say "so many" of it; some keys end with it
_SAYS_UNIT = (
    re.compile(rf"^(?:Optimizer |New |Consecutive |Context in |Maximum (?:number of )?|At (?:least|most) )?({_UNIT})"),
    re.compile(rf"\bso many ({_UNIT})"),
)
_MEASURED = ("seconds", "minutes", "frames per second", "passes over the data")
_KEY_UNIT = re.compile(r"(?:^|_)(steps|pixels|bytes|seconds|minutes|tokens)$")


@dataclass(frozen=True, slots=True)
class Absent:
    """A plugin that cannot be chosen: it is not installed (``command`` installs it), or ``status`` says why nobody may use it."""

    name: str
    command: str = ""
    status: str = ""
    requires: str = ""


@dataclass(frozen=True, slots=True)
class Field:
    """One setting as a field: what ``ernie config explain`` says of it, and the values that can be chosen.

    Attributes:
        path: section, key, and keys in it.
        choices: values to choose from; empty: it is typed.
        many: whether several of them may be chosen.
        unit: of the number; empty: none, or nobody says so.
        missing: known plugins that cannot be chosen.
    """

    path: tuple[str, ...]
    type: str
    default: str
    description: str
    choices: tuple[str, ...] = ()
    many: bool = False
    unit: str = ""
    missing: tuple[Absent, ...] = ()

    @property
    def key(self) -> str:
        """As errors name it."""
        return ".".join(self.path)

    @property
    def group(self) -> str:
        """The section under which the form shows it."""
        return self.path[0]

    @property
    def is_list(self) -> bool:
        """Whether several values can be typed, with commas."""
        return self.many or self.type.startswith("list of ")

    @property
    def names_plugins(self) -> bool:
        """Whether it is a section with one sub-section per plugin, whose plugins it names."""
        return self.path[1:] == () and self.path[0] in MANY

    def names(self, typed: str) -> list[str]:
        """What was typed as names."""
        return [name.strip() for name in typed.split(",") if name.strip()]

    def yaml(self, typed: str) -> str:
        """What was typed as YAML of one line."""
        typed = typed.strip()
        if self.is_list and not typed.startswith("["):
            return "[" + ", ".join(map(scalar, self.names(typed))) + "]"
        if (self.is_list or self.type == "mapping") and "\n" not in typed:
            return typed
        if self.type == "text" or not re.fullmatch(r"[A-Za-z0-9_.+-]+", typed):
            return scalar(typed)
        return typed

    def shown(self, value: Any) -> str:
        """A value of the settings as it would be typed."""
        if self.names_plugins:
            return ", ".join(names_of(value))
        if isinstance(value, list):
            names = [
                item.get("path") if isinstance(item, Mapping) and set(item) == {"path"} else item for item in value
            ]
            simple = all(isinstance(name, str) and "," not in name for name in names)
            return ", ".join(map(str, names)) if simple else json.dumps(value, ensure_ascii=False)
        return json.dumps(value, ensure_ascii=False) if isinstance(value, Mapping) else str(value)


@dataclass(frozen=True, slots=True)
class Group:
    """The fields of one section; ``""``: the basic ones."""

    name: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The plugins of some settings: kind -> the one that is named, or that is taken where none is; section -> those of kinds of
    which a run may have several."""

    one: Mapping[str, str]
    many: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def text(self) -> str:
        """The same choices have the same text."""
        return "|".join(f"{kind}={name}" for kind, name in sorted({**self.one, **self.many}.items()))


def chosen(settings: Mapping[str, Any], model: str = "") -> Chosen:
    """The plugins of settings; ``model``: the one that reads the directory they name."""
    values = flat(settings)
    names = {kind: str(values.get(f"{kind}.name") or KINDS[kind].default or "") for kind in RUN_KINDS}
    names["model"] = model or names["model"]
    many = {section: dict.fromkeys(names_of(settings.get(section))) for section in MANY}
    data = [values.get("data.format"), *(source.get("format") for source in _sources(values))]
    many["formats"].update(dict.fromkeys(str(name) for name in data if name))
    many["schedules"].update(dict.fromkeys(filter(None, [str(values.get("train.schedule") or "")])))
    return Chosen({k: n for k, n in names.items() if n}, {section: tuple(found) for section, found in many.items()})


def _sources(values: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for key in ("data.train", "data.eval"):
        content = values.get(key)
        yield from (item for item in (content if isinstance(content, list) else [content]) if isinstance(item, Mapping))


def groups(plugins: Chosen) -> list[Group]:
    """The form for these plugins."""
    fields = {field.key: field for field in _fields(plugins)}
    basic = [key for key in BASIC if key in fields and (key != "rewards" or _takes_rewards(plugins))]
    first = Group("", tuple(fields.pop(key) for key in basic))
    sections = dict.fromkeys(field.group for field in fields.values())
    return [first, *(Group(s, tuple(f for f in fields.values() if f.group == s)) for s in sections)]


def shown(form: Sequence[Group], settings: Mapping[str, Any]) -> dict[str, str]:
    """Key -> what its field shows, for the keys that are set."""
    values = ((field, value_at(settings, field.path)) for group in form for field in group.fields)
    return {field.key: field.shown(value) for field, value in values if value is not None}


def _takes_rewards(plugins: Chosen) -> bool:
    found = (plugin for plugin in loadable("method") if plugin.name == plugins.one.get("method"))
    return any(MethodCapability.REWARDS in plugin.capabilities for plugin in found)


def _fields(plugins: Chosen) -> Iterator[Field]:
    instead = _other_defaults(plugins.one)
    for path, explained in _explained(plugins):
        if explained.key in _OURS:
            continue
        found = _field(path, explained)
        default = instead.get(explained.key, "" if explained.default == '""' else explained.default)
        if explained.key in _NAMES:
            kind, built_in = _NAMES[explained.key]
            names, missing = _offered(kind)
            yield replace(found, default=default, choices=(*built_in, *names), missing=missing)
        else:
            yield replace(found, default=default)
    for kind in RUN_KINDS:
        if kind != "model":
            names, missing = _offered(kind)
            about = f"{KINDS[kind].summary}."
            yield Field((kind, "name"), "text", KINDS[kind].default or "", about, names, missing=missing)
    for section in _NAMED:
        names, missing = _offered(MANY[section])
        # what every run has is no choice
        names = tuple(name for name in names if name not in ("console", "events", KINDS[MANY[section]].default))
        yield Field((section,), "list of text", "", f"{KINDS[MANY[section]].summary}.", names, True, missing=missing)


def _field(path: tuple[str, ...], explained: Explanation) -> Field:
    match = _CHOICE.fullmatch(explained.type)
    choices = ("true", "false") if _FLAG.fullmatch(explained.type) else ()
    names = tuple(name.strip("`") for name in match[2].split(", ")) if match else choices
    many = bool(match and match[1])
    return Field(path, explained.type, "", explained.description, names, many, _unit(explained))


def _unit(explained: Explanation) -> str:
    """The unit of a number, as its description or its name says."""
    if not explained.type.startswith(("integer", "number")):
        return ""
    says = (pattern.search(explained.description) for pattern in _SAYS_UNIT)
    found = next(filter(None, says), None) or _KEY_UNIT.search(explained.key)
    unit = found[1].lower() if found else ""
    # "Completions with at least this reward" counts none
    return unit if explained.type.startswith("integer") or unit in _MEASURED else ""


def _offered(kind: str) -> tuple[tuple[str, ...], tuple[Absent, ...]]:
    """Names of the plugins that can be used, and the known ones that cannot."""
    here = entries(kind)
    names = tuple(sorted({entry.name for entry in here if entry.status == "ok"}))
    broken = [Absent(e.name, status=e.status, requires=e.requires_core) for e in here if e.status != "ok"]
    absent = [
        Absent(name, install_command(distribution)) for (other, name), distribution in sorted(known().items())
        if other == kind and name not in {entry.name for entry in here} and not installed((distribution,))
    ]  # fmt: skip
    return names, (*broken, *absent)


def _explained(plugins: Chosen) -> Iterator[tuple[tuple[str, ...], Explanation]]:
    for section, cls in CORE_SECTIONS.items():
        yield from _keys("erniecore", (section,), cls)
    # before a directory or a name says which architecture it is: the settings that all have
    models = [plugin.Config for plugin in loadable("model") if plugin.name == plugins.one.get("model")]
    yield from _keys("model", ("model",), models[0] if models else ModelConfig)
    for kind, name in plugins.one.items():
        for plugin in () if kind == "model" else loadable(kind):
            if plugin.name == name:
                yield from _keys(f"{kind} {name}", (kind,), plugin.Config)
    for section, names in plugins.many.items():
        for name in names:
            for plugin in loadable(MANY[section]):
                if plugin.name == name.rpartition(":")[2]:
                    yield from _keys(f"{MANY[section]} {name}", (section, name), plugin.Config)


def _keys(owner: str, path: tuple[str, ...], cls: type[Any]) -> Iterator[tuple[tuple[str, ...], Explanation]]:
    """The keys of a section; instead of one that has keys of its own, these."""
    for explained, (name, info) in zip(section_keys(owner, ".".join(path), cls), cls.model_fields.items(), strict=True):
        inner = _section_in(info.annotation)
        if inner is None:
            yield (*path, name), explained
        else:
            yield from _keys(owner, (*path, name), inner)


def _section_in(annotation: Any) -> type[Any] | None:
    """The class of a value that has keys of its own, if it can be nothing else but ``null``."""
    from pydantic import BaseModel

    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not type(None)]
    alone = kinds[0] if len(kinds) == 1 else None
    return alone if isinstance(alone, type) and issubclass(alone, BaseModel) else None


def _other_defaults(plugins: Mapping[str, str]) -> dict[str, str]:
    """Defaults that a method has instead of the core's, times what the adapter makes of them."""
    found: dict[str, Any] = {}
    for plugin in loadable("method"):
        if isinstance(plugin, MethodPlugin) and plugin.name == plugins.get("method"):
            found = {key: value for key, (value, _) in plugin.defaults.items()}
    for plugin in loadable("adapter"):
        if isinstance(plugin, AdapterPlugin) and plugin.name == plugins.get("adapter"):
            found.update({key: found[key] * factor for key, (factor, _) in plugin.factors.items() if key in found})
    return {key: f"{value:g}" for key, value in found.items()}


def field_of(form: Sequence[Group], key: str) -> Field | None:
    """The field of a key, or of the nearest key above it, if there is one: ``data.train[0].path`` is ``data.train``."""
    fields = {field.key: field for group in form for field in group.fields}
    steps = re.sub(r"\[\d+\]", "", key).split(".")
    return next((fields[k] for n in range(len(steps), 0, -1) if (k := ".".join(steps[:n])) in fields), None)
