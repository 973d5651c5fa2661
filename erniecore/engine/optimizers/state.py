"""State of optimizers, averages and weights as arrays by name, and back, all of it or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import paddle
from erniecore_checkpoint.reader import Tensors
from erniecore_system.units import counted

from erniecore.engine.arrays import Array, dtype_name, to_numpy, to_tensor
from erniecore.errors import CheckpointError
from erniecore.types.optimizer import Optimizer

if TYPE_CHECKING:
    from erniecore.types.model import Tensor


def state_arrays(optimizer: Optimizer) -> dict[str, Array]:
    """The state tensors as numpy arrays (bfloat16 as uint16 bits)."""
    return {name: to_numpy(tensor) for name, tensor in optimizer.state_tensors().items()}


def load_state_arrays(optimizer: Optimizer, arrays: Mapping[str, Array], num_updates: int) -> None:
    """Restore what :func:`state_arrays` returned.

    Raises:
        CheckpointError: a name is missing or unknown, or a shape differs; nothing has been changed then.
    """
    tensors = optimizer.state_tensors()
    load_exactly(tensors, arrays, "optimizer state")
    optimizer.restored(tensors)
    optimizer.num_updates = num_updates


def load_exactly(tensors: Mapping[str, Tensor], arrays: Mapping[str, Array], what: str) -> None:
    """Overwrite all ``tensors`` with the ``arrays`` of the same names. A mapping that reads from files may say the
    shapes beforehand in ``entries``, so that each array is read once.

    Raises:
        CheckpointError: names or shapes differ; nothing has been changed then.
    """
    odd = sorted(set(tensors) ^ set(arrays))
    if odd:
        problem = "missing" if odd[0] in tensors else "unknown"
        raise CheckpointError(f"{what}: not matching: {counted(len(odd), 'tensor')}", where=odd[0], found=problem)
    known: Mapping[str, Any] = arrays.entries if isinstance(arrays, Tensors) else arrays
    for name, tensor in tensors.items():
        if tuple(known[name].shape) != tuple(tensor.shape):
            shapes = str(tuple(known[name].shape)), str(tuple(tensor.shape))
            raise CheckpointError(f"{what}: shape differs", where=name, found=shapes[0], expected=shapes[1])
    with paddle.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(to_tensor(arrays[name], dtype_name(tensor)), True)  # it stays on the device where it is
