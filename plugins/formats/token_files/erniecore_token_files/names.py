"""How token files are named: a pair ``PREFIX.bin`` and ``PREFIX.idx``, or a directory of such."""

from __future__ import annotations

from pathlib import Path


def prefix_of(path: str | Path) -> Path | None:
    """``PREFIX`` where ``path`` names a pair of token files (``PREFIX.bin``, ``PREFIX.idx`` or ``PREFIX``), else None."""
    path = Path(path)
    if path.suffix in (".bin", ".idx"):
        return path.with_suffix("")
    paired = bool(path.name) and path.with_name(path.name + ".idx").is_file()
    return path if paired and not path.is_file() else None


def prefixes_of(path: str | Path) -> list[Path]:
    """All pairs that ``path`` names: one, or those of a directory that holds ``.idx`` files, by name; else none."""
    prefix = prefix_of(path)
    if prefix is not None:
        return [prefix]
    return sorted(found.with_suffix("") for found in Path(path).glob("*.idx")) if Path(path).is_dir() else []


def files_of(prefix: Path) -> tuple[Path, Path]:
    """The paths ``PREFIX.bin`` and ``PREFIX.idx``."""
    return prefix.with_name(prefix.name + ".bin"), prefix.with_name(prefix.name + ".idx")
