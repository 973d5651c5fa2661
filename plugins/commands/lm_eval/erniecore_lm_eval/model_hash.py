"""The content of a model by one hash: its files and those of its adapter."""

from __future__ import annotations

import hashlib
from pathlib import Path

from erniecore_system.contents import FileHashes

from erniecore.api.run import adapter_directory, locate
from erniecore.api.token_cache import user_cache

#: depth of directories, as a checkpoint has them below its own
_FOLDERS = ("", "*/", "*/*/")


def model_hash(source: Path, adapter: Path | None = None) -> str:
    """sha256 over names and contents of all files of the model that ``source`` means and of what goes onto it.

    Raises:
        UsageError: no model there.
    """
    located = locate(source)
    parts = [located.path, located.adapter, adapter_directory(adapter) if adapter is not None else None]
    total = hashlib.sha256()
    with FileHashes(user_cache().with_name("hashes.json")) as hashes:
        for number, directory in enumerate(parts):
            for path in sorted(_files(directory)) if directory is not None else ():
                digest = hashes.of_file(str(path))[str(path)]
                total.update(f"{number} {path.relative_to(directory or path)} {digest}\n".encode())
    return total.hexdigest()


def _files(directory: Path) -> list[Path]:
    found = (path for folder in _FOLDERS for path in directory.glob(f"{folder}*"))
    return [path for path in found if path.is_file() and path.suffix.lower() not in (".md", ".html", ".png")]
