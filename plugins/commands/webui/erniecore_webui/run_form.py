"""The form of a new run: its fields, made of the sections of the core and of the chosen plugins.

A field shows what ``ernie config explain`` says of its key. What is written stays in the text of the settings alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from erniecore.api import install_command
from erniecore.api.adapter import AdapterPlugin
from erniecore.api.installation import entries, installed, known, loadable
from erniecore.api.method import MethodPlugin
from erniecore.api.model import ModelConfig
from erniecore.api.settings import CORE_SECTIONS, KINDS, RUN_KINDS, Explanation, section_keys
from erniecore_webui.yaml_edits import scalar

#: the fields that are not folded
BASIC = (
    "model.path", "method.name", "adapter.name", "quantizer.name", "device.name", "parallel.name", "data.train", "data.eval",
    "data.format", "data.max_seq_len", "train.epochs", "train.max_steps", "train.batch_size", "train.accumulation",
    "train.learning_rate", "train.warmup_ratio", "eval.every", "checkpoint.every",
)  # fmt: skip
#: what the page itself says
_OURS = ("run.out", "run.name", "run.resume")
_CHOICE = re.compile(r"one of (`[^`]*`(?:, `[^`]*`)*)")


@dataclass(frozen=True, slots=True)
class Field:
    """One setting as a field: what ``ernie config explain`` says of it, and the values that can be chosen.

    Attributes:
        choices: values to choose from; empty: it is typed.
        missing: (name, command that installs it) of known plugins that are not installed.
    """

    key: str
    type: str
    default: str
    description: str
    choices: tuple[str, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()

    @property
    def is_list(self) -> bool:
        """Whether several values can be typed, with commas."""
        return self.type.startswith("list of ")

    def yaml(self, typed: str) -> str:
        """What was typed as YAML of one line."""
        typed = typed.strip()
        if self.is_list and not typed.startswith("["):
            return "[" + ", ".join(scalar(item.strip()) for item in typed.split(",") if item.strip()) + "]"
        if (self.is_list or self.type == "mapping") and "\n" not in typed:
            return typed
        if self.type == "text" or not re.fullmatch(r"[A-Za-z0-9_.+-]+", typed):
            return scalar(typed)
        return typed

    def shown(self, value: Any) -> str:
        """A value of the settings as it would be typed."""
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


def chosen(values: Mapping[str, Any]) -> dict[str, str]:
    """Kind -> plugin that the settings name, or that is taken where they name none."""
    names = {kind: str(values.get(f"{kind}.name") or KINDS[kind].default or "") for kind in RUN_KINDS}
    return {kind: name for kind, name in names.items() if name}


def groups(plugins: Mapping[str, str]) -> list[Group]:
    """The form for these plugins."""
    fields = {field.key: field for field in _fields(plugins)}
    basic = Group("", tuple(fields.pop(key) for key in BASIC if key in fields))
    sections = dict.fromkeys(key.partition(".")[0] for key in fields)
    return [basic, *(Group(s, tuple(f for k, f in fields.items() if k.partition(".")[0] == s)) for s in sections)]


def _fields(plugins: Mapping[str, str]) -> Iterator[Field]:
    instead = _other_defaults(plugins)
    for explained in _explained(plugins):
        if explained.key in _OURS:
            continue
        match = _CHOICE.fullmatch(explained.type)
        choices = ("true", "false") if explained.type == "true or false" else ()
        names = tuple(name.strip("`") for name in match[1].split(", ")) if match else choices
        default = instead.get(explained.key, "" if explained.default == '""' else explained.default)
        yield Field(explained.key, explained.type, default, explained.description, names)
    for kind in RUN_KINDS:
        if kind != "model":
            yield _plugin_field(kind)


def _plugin_field(kind: str) -> Field:
    names = tuple(sorted(entry.name for entry in entries(kind) if entry.status == "ok"))
    absent = tuple(
        (name, install_command(distribution)) for (other, name), distribution in sorted(known().items())
        if other == kind and name not in names and not installed((distribution,))
    )  # fmt: skip
    return Field(f"{kind}.name", "text", KINDS[kind].default or "", f"{KINDS[kind].summary}.", names, absent)


def _explained(plugins: Mapping[str, str]) -> Iterator[Explanation]:
    for section, cls in CORE_SECTIONS.items():
        yield from section_keys("erniecore", section, cls)
    # which architecture it is says the directory: the settings that all have
    yield from section_keys("model", "model", ModelConfig)
    for kind, name in plugins.items():
        for plugin in () if kind == "model" else loadable(kind):
            if plugin.name == name:
                yield from section_keys(f"{kind} {name}", kind, plugin.Config)


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
    """The field of a key, if there is one."""
    return next((field for group in form for field in group.fields if field.key == key), None)
