"""The defaults that a run began with, read from its ``resolved.yaml``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from erniecore.config.yaml import parse


def defaults_in(file: Path) -> dict[str, Any]:
    """``section.key`` -> value, of what nobody wrote."""
    text = file.read_text(encoding="utf-8")
    document, lines = parse(text, str(file)), text.splitlines()
    default = [path for path, line in document.lines.items() if len(path) == 2 and "  # default" in lines[line - 1]]
    return {".".join(map(str, path)): document.data[str(path[0])][path[1]] for path in default}
