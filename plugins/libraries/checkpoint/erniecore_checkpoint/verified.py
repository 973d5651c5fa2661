"""Which checkpoints this process knows to be whole: those that it wrote or verified, as long as no file of them changes."""

from __future__ import annotations

from pathlib import Path

#: what a file looked like when its bytes were last found right: (name, size, mtime in ns, inode)
_Signature = tuple[tuple[str, int, int, int], ...]
#: Checkpoints that this process verified already, so that retention does not hash them again at every save.
_verified: dict[Path, _Signature] = {}


def is_known(directory: Path) -> bool:
    """Whether this process has found ``directory`` whole, and no file of it changed since."""
    known = _verified.get(directory.resolve())
    return known is not None and known == _signature(directory)


def remember_verified(directory: Path) -> None:
    """Note that ``directory`` holds what its manifest says (also called by the writer, which hashed every byte)."""
    _verified[directory.resolve()] = _signature(directory)


def _signature(directory: Path) -> _Signature:
    stats = [(path.name, path.stat()) for path in sorted(directory.iterdir())]
    return tuple((name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in stats)
