"""Small safetensors files of floating-point tensors, whole and in float32: adapters, statistics. Not for models, whose
tensors are read one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from erniecore_errors import CheckpointError

from erniecore_checkpoint.files import translated
from erniecore_checkpoint.safetensors_io import damaged, open_tensors
from erniecore_checkpoint.safetensors_write import write_safetensors
from erniecore_checkpoint.tensors import LONG_NAMES, Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray


def read_tensors(path: Path) -> dict[str, NDArray[np.float32]]:
    """All tensors of a safetensors file as float32; bfloat16 and float16 convert exactly, float64 is rounded.

    Raises:
        CheckpointError: missing or damaged, a pickle, another dtype, or values that are not finite.
    """
    return {name: _floats(path, name, tensor) for name, tensor in open_tensors(path).items()}


def write_tensors(path: Path, tensors: Mapping[str, NDArray[np.float32]]) -> None:
    """Write a new safetensors file and wait until it is on the disk. Raises ``CheckpointError``."""
    with translated(path, "writing tensors"):
        write_safetensors(path, dict(tensors))


def _floats(path: Path, name: str, tensor: Tensor) -> NDArray[np.float32]:
    if tensor.dtype not in ("F16", "BF16", "F32", "F64"):
        raise CheckpointError(
            "this tensor is not floating-point", where=f"{path}: {name}", found=LONG_NAMES[tensor.dtype]
        )
    array = tensor.load()
    if tensor.dtype == "BF16":
        array = (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    values: NDArray[np.float32] = np.array(array, np.float32)
    if not np.isfinite(values).all():
        raise damaged(path, "this tensor holds values that are not finite", name)
    return values
