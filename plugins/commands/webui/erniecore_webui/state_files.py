"""Small files of our own that a process may be writing: read forgivingly, since another look comes soon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from erniecore.api.files import read_json

_MOST = 1 << 24


def stored_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; ``{}`` where there is none, or none that can be read."""
    try:
        content = read_json(path, _MOST)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
