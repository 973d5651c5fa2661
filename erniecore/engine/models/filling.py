"""Empty models: built under ``paddle.LazyGuard``, their parameters have shapes and no memory. Each knows where its values come
from (Paddle keeps that function with the parameter) and gets them when it is first asked for: so a quantizer packs layer by
layer, and a rank makes only what it keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import paddle
from erniecore_system import mapped
from paddle.base import core, unique_name

from erniecore.engine import arrays
from erniecore.engine.arrays import Array

if TYPE_CHECKING:
    from erniecore.types.model import Layer, Tensor

#: a part of a tensor: a slice for each of its first axes
Box: TypeAlias = tuple[slice, ...]


def is_empty(tensor: Tensor) -> bool:
    """Whether this is a parameter or a buffer that has no values yet."""
    return vars(tensor).get("_init_func") is not None and not tensor._is_initialized()


def filled(tensor: Tensor) -> Tensor:
    """``tensor``, with its values from here on. Raises what reading them raises."""
    if is_empty(tensor):
        with paddle.no_grad():
            tensor._init_func(tensor, None)
        _say(tensor, None)  # it holds files and other weights
    return tensor


def _say(tensor: Tensor, source: Any) -> None:
    """What gives an empty tensor its values (None: nothing), as ``Parameter.set_init_func`` keeps it, which buffers lack."""
    vars(tensor)["_init_func"] = source


def fill(layer: Layer) -> None:
    """Every parameter and buffer of ``layer`` and its sublayers has values from here on."""
    for tensor in tensors_of(layer):
        filled(tensor)


def tensors_of(layer: Layer) -> list[Tensor]:
    """Every parameter and buffer of ``layer`` and its sublayers."""
    return [*layer.parameters(), *layer.buffers()]


@contextmanager
def borrowed(tensors: Iterable[Tensor]) -> Iterator[None]:
    """While the block runs, ``tensors`` have values; after it, those that were empty and come from files, or are new,
    are empty again. Raises what reading them raises."""
    some = [tensor for tensor in tensors if is_empty(tensor)]
    with emptied_after(filter(is_stored, some)):
        for tensor in some:
            filled(tensor)
        yield


@contextmanager
def emptied_after(tensors: Iterable[Tensor]) -> Iterator[None]:
    """After the block ``tensors`` are empty. Those of which :func:`is_stored` is true now get the same values again when they are
    filled."""
    sources = [(tensor, tensor._init_func if is_stored(tensor) else None) for tensor in tensors]
    try:
        yield
    finally:
        for tensor, source in sources:
            tensor._clear_data()
            _say(tensor, source)


@contextmanager
def borrowed_on_use(model: Layer) -> Iterator[None]:
    """As :func:`borrowed` of ``model``, whose repeated layers (the entries of its lists) have values only while each is called:
    so a model computes in the memory of one layer, and reads every layer for each batch."""
    layers = repeated_layers(model)
    inside = {id(tensor) for layer in layers.values() for tensor in tensors_of(layer)}
    with ExitStack() as hooks, ExitStack() as open_layer:

        def begin(layer: Layer, inputs: Any) -> None:
            open_layer.enter_context(borrowed(tensors_of(layer)))

        def end(layer: Layer, inputs: Any, outputs: Any) -> None:
            open_layer.close()

        for layer in layers.values():
            hooks.callback(layer.register_forward_pre_hook(begin).remove)
            hooks.callback(layer.register_forward_post_hook(end).remove)
        hooks.enter_context(borrowed([tensor for tensor in tensors_of(model) if id(tensor) not in inside]))
        yield


def repeated_layers(model: Layer) -> dict[str, Layer]:
    """Name -> layer, of the entries of the outermost ``LayerList`` objects of ``model``."""
    found: dict[str, Layer] = {}
    for name, layer in model.named_sublayers():
        if isinstance(layer, paddle.nn.LayerList) and not any(name.startswith(f"{known}.") for known in found):
            found |= {f"{name}.{key}": entry for key, entry in layer.named_children()}
    return found


def wait_for(tensors: Iterable[Tensor], make: Callable[[], None]) -> None:
    """``tensors`` are empty from here on. When the first of them is filled, ``make`` is called, which must :func:`give` values to
    all of them."""
    for tensor in tensors:
        if tensor._is_initialized():
            tensor._clear_data()
        _say(tensor, lambda target, block: make())


def give(tensor: Tensor, values: Tensor) -> None:
    """An empty ``tensor`` has ``values`` from here on, whose memory it shares."""
    arrays.share_memory(values, tensor)
    _say(tensor, None)


def is_stored(tensor: Tensor) -> bool:
    """Whether ``tensor`` is empty and has its values from a file, or is a new one."""
    return is_empty(tensor) and isinstance(tensor._init_func, Source)


def add_buffers(
    layer: Layer, shapes: Mapping[str, tuple[Sequence[int], str]], make: Callable[[], Mapping[str, Tensor]]
) -> None:
    """Give ``layer`` empty buffers that are made together.

    Args:
        shapes: name -> shape and dtype. make: called once, when the first of them is filled: name -> values.
    """
    waiting, made = [make], dict[str, Any]()

    def give(name: str, target: Tensor, block: Any) -> None:
        while waiting:
            made.update(waiting.pop()())
        arrays.share_memory(made.pop(name), target)

    for name, (shape, dtype) in shapes.items():
        kind = core.VarDesc.VarType.DENSE_TENSOR
        buffer = core.eager.Tensor(getattr(paddle, dtype), list(shape), unique_name.generate("buffer"), kind, True)
        _say(buffer, partial(give, name))
        layer.register_buffer(name, buffer)


class Source(NamedTuple):
    """Where an empty tensor has its values from.

    Attributes:
        place: writes them into it. dtype: in which the files have them; empty: in several, or in none that can be mapped.
        view: the values as a file has them, and whether their last two axes are swapped there. parts: see :func:`stored_parts`.
        within: the source of a part of the tensor, which reads nothing else.
    """

    place: Callable[[Tensor], None]
    dtype: str = ""
    view: Callable[[], tuple[Tensor, bool]] | None = None
    parts: Callable[[], Iterator[Array]] | None = None
    within: Callable[[Box], Source] | None = None

    def __call__(self, target: Tensor, block: Any = None) -> None:
        """What Paddle calls to fill ``target``."""
        self.place(target)


def fill_from(targets: Mapping[str, Tensor], sources: Mapping[str, Source]) -> None:
    """Say that ``sources`` give ``targets`` their values; what is not empty gets them at once."""
    for name, source in sources.items():
        target = targets[name]
        if is_empty(target):
            _say(target, source)
        else:
            source(target)


def attach_zeros(layer: Layer) -> None:
    """Say that every empty tensor in the state of ``layer`` is zero. For a model whose values come later, from packed files or
    from a checkpoint: where it needs memory before that, nothing is drawn."""
    for tensor in layer.state_dict().values():
        if is_empty(tensor):
            _say(tensor, _ZEROS)


def _place_zeros(target: Tensor) -> None:
    arrays.share_memory(paddle.zeros(target.shape, target.dtype), target)


_ZEROS: Source = Source(_place_zeros, within=lambda box: _ZEROS)


def stored_dtype(parameter: Tensor) -> str:
    """The dtype in which files have the values of an empty ``parameter``, if :func:`stored_values` gives them, or nothing."""
    source = parameter._init_func if is_empty(parameter) else None
    return source.dtype if isinstance(source, Source) and source.view else ""


def stored_values(parameter: Tensor, dtype: str) -> tuple[Tensor, bool] | None:
    """The values of an empty ``parameter`` as its file has them: a frozen tensor over the mapped file (a copy where they are in
    several pieces), of which nothing is in memory until it is used, and whether its last two axes are swapped.

    Args:
        dtype: ``bfloat16``. None is returned where the file has another, and for what comes from no file.
    Raises:
        NumericsError: values that are not finite.
    """
    return parameter._init_func.view() if stored_dtype(parameter) == dtype else None


def stored_parts(parameter: Tensor) -> tuple[str, Iterator[Array]] | None:
    """The dtype of an empty ``parameter`` in its file, and its values, of a stack a part after another: views of the mapped file
    where they are in one piece, bits for bfloat16. Each is out of memory when the next is asked for.

    Returns None for what comes from no file, or has several dtypes. The iterator raises ``NumericsError``: not finite.
    """
    dtype = stored_dtype(parameter)
    return (dtype, parameter._init_func.parts()) if dtype and parameter._init_func.parts else None


def mapped_bytes(model: Layer) -> int:
    """Bytes of the tensors of ``model`` that lie over mapped files: no allocator counts them, and a plan does."""
    tensors = [x for x in (*model.parameters(), *model.buffers()) if x._is_initialized()]
    return sum({x.data_ptr(): x.size * x.element_size() for x in tensors if mapped.holds(x.data_ptr())}.values())


def keep_part(parameter: Tensor, part: Sequence[slice]) -> None:
    """Replace ``parameter`` by ``part`` of it, a slice for each of its first axes with steps of 1, in place. Of an empty one that
    a file fills, nothing else is read; of another empty one, the whole exists only while it is filled."""
    whole = list(parameter.shape)
    ranges = [range(size)[cut] for size, cut in zip(whole, part, strict=False)]
    axes, starts, stops = list(range(len(ranges))), [r.start for r in ranges], [r.stop for r in ranges]

    def cut(tensor: Tensor) -> Tensor:
        return paddle.slice(tensor.detach(), axes, starts, stops).contiguous().clone()

    make = parameter._init_func if is_empty(parameter) else None
    if isinstance(make, Source) and make.within:
        parameter.get_tensor()._set_dims([*map(len, ranges), *whole[len(ranges) :]])
        _say(parameter, make.within(tuple(slice(r.start, r.stop) for r in ranges)))
    else:
        _cut(parameter, [*map(len, ranges), *whole[len(ranges) :]], cut)


def keep_range(parameter: Tensor, start: int, stop: int) -> None:
    """As :func:`keep_part`: values ``start`` to ``stop`` of ``parameter`` as it lies in memory, as a tensor of one axis. Of a
    file, whole rows along the first axis are read."""
    width = max(prod(parameter.shape[1:]), 1)
    first = start // width
    keep_part(parameter, [slice(first, -(-stop // width))])
    begin, end = start - first * width, stop - first * width
    _cut(parameter, [stop - start], lambda tensor: tensor.detach().flatten()[begin:end].clone())


def _cut(parameter: Tensor, shape: Sequence[int], cut: Callable[[Tensor], Tensor]) -> None:
    """What ``cut`` leaves of ``parameter``, of ``shape`` and with memory of its own; of an empty one, when it is filled."""
    if not is_empty(parameter):
        arrays.share_memory(cut(parameter), parameter)
        return
    whole, make = list(parameter.shape), parameter._init_func

    def fill_cut(target: Tensor, block: Any = None) -> None:
        target.get_tensor()._set_dims(whole)
        make(target, None)
        arrays.share_memory(cut(target), target)

    parameter.get_tensor()._set_dims(list(shape))
    _say(parameter, fill_cut)
