"""Settings in words: what a key means, which values differ between two runs, and a JSON schema for editors."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from erniecore import registry
from erniecore.config.compose import Loaded, composed, values
from erniecore.config.core import CORE_SECTIONS
from erniecore.config.problems import Known
from erniecore.config.section import Section
from erniecore.config.sources import MANY
from erniecore.errors import UsageError
from erniecore.kinds import KINDS, RUN_KINDS

_WORDS = {int: "integer", float: "number", bool: "true or false", str: "text", type(None): "nothing", Any: "anything"}
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


@dataclass(frozen=True, slots=True)
class Explanation:
    """One key of one owner (``erniecore`` or e.g. ``method sft``)."""

    key: str
    owner: str
    type: str
    default: str
    description: str

    def as_json(self) -> dict[str, str]:
        """The fields by name."""
        return asdict(self)


def explain(key: str) -> list[Explanation]:
    """What ``section.key`` means, once for every installed plugin that has it.

    Raises ``UsageError`` with the nearest key when nobody has it.
    """
    found = [e for owner, section, cls in owners() for e in section_keys(owner, section, cls) if e.key == key]
    if found:
        return found
    known = sorted({e.key for owner, section, cls in owners() for e in section_keys(owner, section, cls)})
    close = Known(known).suggest(key)
    inside = [k for k in known if k.startswith(key + ".")]
    raise UsageError(
        f"no such setting: {key}",
        expected=", ".join(inside),
        fix=f"did you mean {close}?" if close and not inside else "",
        next=f"ernie config explain {close}" if close and not inside else "ernie config show",
    )


def owners() -> Iterable[tuple[str, str, type[Section]]]:
    """(owner, section, class) of the core and of every installed plugin that a run can use; broken ones are left out."""
    for name, cls in CORE_SECTIONS.items():
        yield "erniecore", name, cls
    sections = {kind: section for section, kind in MANY.items()}
    for kind in (*RUN_KINDS, *sections):
        for plugin in registry.loadable(kind):
            section = f"{sections[kind]}.{plugin.name}" if kind in sections else kind
            yield f"{kind} {plugin.name}", section, plugin.Config


def section_keys(owner: str, section: str, cls: type[Section]) -> list[Explanation]:
    """Every key of one section."""
    return [
        Explanation(f"{section}.{name}", owner, type_text(info), default_text(info), info.description or "")
        for name, info in cls.model_fields.items()
    ]


def type_text(info: FieldInfo) -> str:
    """The type of a field and its bounds, e.g. ``integer ≥ 1``."""
    bounds = [
        f"{sign} {value:g}" for name, sign in _BOUNDS.items() for value in [_bound(info, name)] if value is not None
    ]
    return " ".join([_annotation(info.annotation), " and ".join(bounds)]).strip()


def _bound(info: FieldInfo, name: str) -> Any:
    return next((getattr(m, name) for m in info.metadata if getattr(m, name, None) is not None), None)


def _annotation(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(f"`{a}`" for a in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_annotation(a) for a in arguments)
    if origin in (tuple, list):
        return "list of " + _annotation(arguments[0])
    if origin in (dict, Mapping) or annotation is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "{" + ", ".join(annotation.model_fields) + "}"
    return str(_WORDS.get(annotation, getattr(annotation, "__name__", annotation)))


def default_text(info: FieldInfo) -> str:
    """The default of a field as YAML has it; ``required`` when there is none."""
    from erniecore.config.resolved import scalar

    default = info.get_default(call_default_factory=True, validated_data={})
    if default is PydanticUndefined:
        return "required"
    return scalar(default.model_dump(mode="json") if isinstance(default, BaseModel) else default)


def differences(left: Loaded, right: Loaded) -> list[tuple[str, Any, Any]]:
    """(key, value left, value right) where two runs differ; a key that one side does not have is ``None`` there."""
    a, b = ({".".join(path): value for path, value in values(side.settings)} for side in (left, right))
    return [(key, a.get(key), b.get(key)) for key in dict.fromkeys([*a, *b]) if a.get(key) != b.get(key)]


def schema(plugins: Mapping[str, Any]) -> dict[str, Any]:
    """JSON schema of a settings file for a selection of plugins (kind -> plugin), e.g. for an editor's completion."""
    result = composed(plugins).model_json_schema()
    result["title"] = "erniecore settings"
    result.pop("required", None)
    properties: dict[str, Any] = result["properties"]
    del properties["plugins"]
    properties["extends"] = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    for kind in RUN_KINDS:
        if kind not in plugins:
            properties[kind] = {"type": "null", "description": KINDS[kind].summary}
            continue
        section = plugins[kind].Config.model_json_schema(ref_template="#/$defs/{model}")
        result.setdefault("$defs", {}).update(section.pop("$defs", {}))
        section.setdefault("properties", {})["name"] = {"type": "string", "description": KINDS[kind].summary}
        properties[kind] = {"anyOf": [{"type": "string"}, section], "description": KINDS[kind].summary}
    for name, kind in MANY.items():
        sections = {p.name: p.Config.model_json_schema() for p in plugins.get(kind, ())}
        properties[name] = {"anyOf": [{"type": "array"}, {"type": "object", "properties": sections}]}
    source = {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Source"}]}
    for split in ("train", "eval"):
        result["$defs"]["DataSection"]["properties"][split]["items"] = source
    return result
