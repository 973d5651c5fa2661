"""Rematerialization of single tensors: one that is cheap to compute is computed anew in the backward pass instead of being
saved for it. Unlike recomputation of blocks (``erniecore.engine.training.recompute``), which runs a whole block twice, this
repeats one elementwise operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import paddle
from paddle import Tensor

Compute = Callable[[], Tensor]


class Rematerialization:
    """Computes a tensor that operators did not save: once for all of them, and freed after the last."""

    def __init__(self, compute: Compute) -> None:
        self._compute, self._value = compute, None
        self._users = 0

    def saved(self, shape: list[int]) -> SavedTensor:
        """What one operator saves in place of the tensor, which it used in this shape."""
        self._users += 1
        return SavedTensor(self, shape)

    def tensor(self, shape: list[int]) -> Tensor:
        """The tensor for the backward pass of one of the operators."""
        value = self._value
        if value is None:
            with paddle.no_grad():
                value = self._compute().detach()
        self._users -= 1
        self._value = value if self._users > 0 else None
        return value.reshape(shape)


class SavedTensor:
    """A rematerialization and a shape. Not a tuple: Paddle looks for tensors in those."""

    def __init__(self, source: Rematerialization, shape: list[int]) -> None:
        self.source, self.shape = source, shape


_active: list[tuple[Tensor, Rematerialization]] = []


@contextmanager
def rematerialized(x: Tensor, compute: Compute) -> Iterator[None]:
    """Inside the block, operators that need ``x`` for their backward pass save ``compute`` instead, which must return the same
    bits. Blocks may be nested; inside of a recomputed block this does nothing, as nothing is saved there.

    Args:
        compute: runs without gradient; the tensors that it reads are saved.
    """
    if not paddle.is_grad_enabled():
        yield
        return
    _active.append((x, Rematerialization(compute)))  # x itself too: its address must not be reused meanwhile
    hooks = paddle.autograd.saved_tensors_hooks(_pack, _unpack)
    entered = len(_active) == 1 and _enter(hooks)
    try:
        yield
    finally:
        _active.pop()
        if entered:
            hooks.__exit__(None, None, None)


def _enter(hooks: Any) -> bool:
    """Install the hooks; False where recomputation has installed its own: Paddle supports one pair at a time."""
    try:
        hooks.__enter__()
    except ValueError:
        return False
    return True


def _pack(x: Tensor) -> Any:
    for known, source in reversed(_active):
        if x.data_ptr() == known.data_ptr() and x.size == known.size and x.dtype == known.dtype and x.is_contiguous():
            return source.saved(x.shape)
    # softmax and the like save their result; with its history, the graph would keep itself alive for ever
    return x if x.persistable else x.detach()


def _unpack(kept: Any) -> Tensor:
    found: Tensor = kept.source.tensor(kept.shape) if isinstance(kept, SavedTensor) else kept
    return found
