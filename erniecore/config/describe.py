"""A section of the settings in words: each key with its type, default and description, for ``ernie plugins info`` and the
reference."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from erniecore.config.values import scalar
from erniecore.sections import Section

_TYPE_NAMES = {
    int: "integer",
    float: "number",
    bool: "true or false",
    str: "text",
    type(None): "nothing",
    Any: "anything",
}
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
    return str(_TYPE_NAMES.get(annotation, getattr(annotation, "__name__", annotation)))


def default_text(info: FieldInfo) -> str:
    """The default of a field as YAML has it; ``required`` when there is none."""
    default = info.get_default(call_default_factory=True, validated_data={})
    if default is PydanticUndefined:
        return "required"
    return scalar(default.model_dump(mode="json") if isinstance(default, BaseModel) else default)
