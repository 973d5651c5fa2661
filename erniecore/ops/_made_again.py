"""Tensors that are cheap to make are made again in the backward pass instead of being kept for it. Not recomputation of
blocks (``erniecore.engine.training.recompute``), which runs everything twice: here one elementwise operator is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import paddle
from paddle import Tensor

Make = Callable[[], Tensor]


class Recipe:
    """How to make a tensor that operators did not keep. Made once for all of them, and dropped after the last."""

    def __init__(self, make: Make) -> None:
        self._make, self._made = make, None
        self._open = 0

    def ordered(self, shape: list[int]) -> Order:
        """What one operator keeps instead of the tensor, which it saw in this shape."""
        self._open += 1
        return Order(self, shape)

    def tensor(self, shape: list[int]) -> Tensor:
        """The tensor for one of the operators."""
        made = self._made
        if made is None:
            with paddle.no_grad():
                made = self._make().detach()
        self._open -= 1
        self._made = made if self._open > 0 else None
        return made.reshape(shape)


class Order:
    """A recipe and a shape. Not a tuple: Paddle looks for tensors in those."""

    def __init__(self, recipe: Recipe, shape: list[int]) -> None:
        self.recipe, self.shape = recipe, shape


_recipes: list[tuple[Tensor, Recipe]] = []


@contextmanager
def made_again(x: Tensor, make: Make) -> Iterator[None]:
    """Inside, operators that want ``x`` for their backward pass keep ``make`` instead, which must give the same bits. It may
    be used inside of itself; inside of a recomputed block it does nothing, as nothing is kept there.

    Args:
        make: runs without gradient; the tensors that it reads are kept.
    """
    if not paddle.is_grad_enabled():
        yield
        return
    _recipes.append((x, Recipe(make)))  # x itself too: nothing else can be at its address meanwhile
    hooks = paddle.autograd.saved_tensors_hooks(_pack, _unpack)
    entered = len(_recipes) == 1 and _enter(hooks)
    try:
        yield
    finally:
        _recipes.pop()
        if entered:
            hooks.__exit__(None, None, None)


def _enter(hooks: Any) -> bool:
    """False where the hooks of somebody else, recomputation, are in use: Paddle has room for one pair."""
    try:
        hooks.__enter__()
    except ValueError:
        return False
    return True


def _pack(x: Tensor) -> Any:
    for known, recipe in reversed(_recipes):
        if x.data_ptr() == known.data_ptr() and x.size == known.size and x.dtype == known.dtype and x.is_contiguous():
            return recipe.ordered(x.shape)
    # of softmax and the like it is the result that is kept; with its history, the graph would hold itself alive for ever
    return x if x.persistable else x.detach()


def _unpack(kept: Any) -> Tensor:
    found: Tensor = kept.recipe.tensor(kept.shape) if isinstance(kept, Order) else kept
    return found
