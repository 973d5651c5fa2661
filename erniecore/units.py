"""How sizes read in messages. Not for files or JSON, which hold plain numbers."""

from __future__ import annotations


def size_text(num_bytes: float) -> str:
    """Bytes in binary units: ``512 B``, ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"
