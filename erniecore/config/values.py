"""One value of YAML 1.2: what an unquoted text means (the core schema), and a value as text. Files are in ``yaml.py``."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

_BARE = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
#: printable for JSON, but a line break or refused for YAML
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")

_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL, _HEX = re.compile(r"0o[0-7]{1,64}"), re.compile(r"0x[0-9a-fA-F]{1,64}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_CONSTANTS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}

#: Keys and list positions from the root to a value.
Path: TypeAlias = "tuple[str | int, ...]"


@dataclass(frozen=True)
class Document:
    """A parsed file: plain data, and the 1-based line of every key and list item."""

    data: dict[str, Any]
    lines: dict[Path, int] = field(default_factory=dict)


def plain_scalar(text: str) -> str | int | float | bool | None:
    """The value of an unquoted scalar in the core schema."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text):
        return int(text[2:], 8)
    if _HEX.fullmatch(text):
        return int(text[2:], 16)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INFINITE.fullmatch(text):
        return float(text.lower().replace(".", ""))
    return text


def scalar(value: Any) -> str:
    """``value`` in one line of YAML 1.2, which :func:`parse` reads back; text without special characters stays bare."""
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(value, str):
        bare = _BARE.fullmatch(value) and plain_scalar(value) == value
        return value if bare else _quoted(value)
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else (".nan" if math.isnan(value) else f"{value}".replace("i", ".i"))
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar(k)}: {scalar(v)}" for k, v in value.items()) + "}"
    return "[" + ", ".join(scalar(v) for v in value) + "]"


def _quoted(text: str) -> str:
    return _ESCAPED.sub(lambda m: f"\\u{ord(m[0]):04x}", json.dumps(text, ensure_ascii=False))


def assignments(sections: Mapping[str, Any]) -> list[str]:
    """Sections with their keys as ``section.key=value`` arguments; one that is a value, such as ``method: sft``, as one."""
    return [
        f"{name}={scalar(value)}"
        for section, content in sections.items()
        for name, value in (
            ((f"{section}.{key}", value) for key, value in content.items())
            if isinstance(content, Mapping)
            else [(section, content)]
        )
    ]
