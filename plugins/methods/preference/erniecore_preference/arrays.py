"""Small safetensors files of whole numpy arrays in their own dtypes: caches. A file is replaced at once or not at all,
and one whose bytes have changed is noticed. Not for models, whose tensors are read one at a time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from erniecore_system.durable import sync_directory

from erniecore.api.tensors import damaged, open_tensors, translated, write_safetensors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.generic]

#: a tensor beside the others: sha256 of their names, dtypes, shapes and bytes
SEAL = "sha256"


def read_arrays(path: Path) -> dict[str, Array]:
    """What :func:`write_arrays` wrote. Raises ``CheckpointError``: missing, damaged or changed."""
    arrays: dict[str, Array] = {name: np.array(tensor.load()) for name, tensor in open_tensors(path).items()}
    seal = arrays.pop(SEAL, None)
    if seal is None or seal.tobytes() != _digest(arrays):
        raise damaged(path, "its contents are not what was written")
    return arrays


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Replace ``path``: it holds its old or its new content, whenever the power fails. Raises ``CheckpointError``."""
    sealed = {**arrays, SEAL: np.frombuffer(_digest(arrays), np.uint8)}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with translated(path, "writing arrays"):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        try:
            write_safetensors(temporary, sealed, finite=False)  # a cache may hold a logarithm of 0
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_directory(path.parent)


def _digest(arrays: Mapping[str, Array]) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.digest()
