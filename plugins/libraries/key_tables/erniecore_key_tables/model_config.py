"""The config.json that a foreign file's ``model_name_or_path`` leads to, for keys whose meaning depends on the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erniecore.api.files import read_json


def config_json(path: Any) -> Mapping[str, Any] | None:
    """The object in ``path/config.json``; None where ``path`` is no text or there is none."""
    if not isinstance(path, str):
        return None
    try:
        content = read_json(Path(path) / "config.json")
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
