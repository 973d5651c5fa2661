"""Empty models: built under ``paddle.LazyGuard``, their parameters have shapes and no memory. Each knows where its values come
from (Paddle keeps that function with the parameter) and gets them when it is first asked for: so a quantizer packs layer by
layer, and a rank makes only what it keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from paddle.base.framework import EagerParamBase

from erniecore.engine import arrays
from erniecore.types.model import TensorMap

if TYPE_CHECKING:
    from erniecore.types.model import Layer, Tensor


def is_empty(tensor: Tensor) -> bool:
    """Whether this is a parameter that has no values yet."""
    return isinstance(tensor, EagerParamBase) and tensor._init_func is not None and not tensor._is_initialized()


def filled(tensor: Tensor) -> Tensor:
    """``tensor``, with its values from here on. Raises what reading them raises."""
    if is_empty(tensor):
        tensor.initialize()
    return tensor


def fill(layer: Layer) -> None:
    """Every parameter of ``layer`` and its sublayers has values from here on."""
    for parameter in layer.parameters():
        filled(parameter)


class Source(NamedTuple):
    """Where an empty parameter has its values from: ``place`` writes them into it; ``view`` has those of a dtype as a file has
    them, and whether their last two axes are swapped there (None: it has another)."""

    entry: TensorMap
    place: Callable[[TensorMap, Tensor], None]
    view: Callable[[TensorMap, str], tuple[Tensor, bool] | None] | None = None

    def __call__(self, target: Tensor, block: Any = None) -> None:
        """What Paddle calls to fill ``target``."""
        self.place(self.entry, target)


def fill_from(targets: Mapping[str, Tensor], sources: Iterable[Source]) -> None:
    """Say that ``sources`` give ``targets`` their values; what is not empty gets them at once."""
    for source in sources:
        target = targets[source.entry.name]
        if is_empty(target):
            target.set_init_func(source)
        else:
            source(target)


def stored_values(parameter: Tensor, dtype: str) -> tuple[Tensor, bool] | None:
    """The values of an empty ``parameter`` as its file has them: a frozen tensor over the mapped file (a copy where they are in
    several pieces), of which nothing is in memory until it is used, and whether its last two axes are swapped.

    Args:
        dtype: ``bfloat16``. None is returned where the file has another, and for what comes from no file.
    Raises:
        NumericsError: values that are not finite.
    """
    source = parameter._init_func if is_empty(parameter) else None
    return source.view(source.entry, dtype) if isinstance(source, Source) and source.view else None


def keep_part(parameter: Tensor, shape: Sequence[int], part: Callable[[Tensor], Tensor]) -> None:
    """Replace ``parameter`` by a part of it of ``shape``, in place; of an empty one, the whole exists only while it is filled.
    ``part``: whole -> part, a tensor with memory of its own."""
    if not is_empty(parameter):
        arrays.share_memory(part(parameter.detach()), parameter)
        return
    whole, make = list(parameter.shape), parameter._init_func

    def fill_part(target: Tensor, block: Any = None) -> None:
        target.get_tensor()._set_dims(whole)
        make(target, None)
        arrays.share_memory(part(target.detach()), target)

    parameter.get_tensor()._set_dims(list(shape))
    parameter.set_init_func(fill_part)
