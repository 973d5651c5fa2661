"""The decoder layers of a model as a chain: the calibration data passes them one after another, and what a layer gives for each
batch is all that is kept for the next. Only the layer that runs needs its weights, so that a model of any size is calibrated in
the memory of one layer. The model's own code makes the pass: layers before give what was kept, and the pass ends behind the layer
that is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeAlias

import numpy as np
import paddle  # noqa: TID253
from numpy.typing import NDArray
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api.layers import borrowed, is_stored, repeated_layers, tensors_of

Batches: TypeAlias = Sequence[NDArray[np.int64]]
#: what a layer gave for each batch
States: TypeAlias = list[Any]
_BLOCK = re.compile(r"^(.*?\.?(?:layers|blocks|h)\.\d+)\.")


class _Done(Exception):
    """Ends a pass behind the layer that was asked for."""


class Chain:
    """Passes over ``batches``, layer by layer. The model is in evaluation mode; its weights may be empty.

    Attributes:
        names: of the decoder layers, in the order of the pass: the entries of a list that is called layers, blocks or h. Other
            layers of the model are not in the chain; of a model without such a list, none is.
    """

    def __init__(self, model: nn.Layer, batches: Batches) -> None:
        self.model, self.batches = model, batches
        # gives what enters the first layer: what it computes later is not looked at
        self._entry: nn.Layer | None = None
        self.names: list[str] = []
        lists: dict[str, list[str]] = {}
        for name in repeated_layers(model):
            if _BLOCK.match(f"{name}."):
                lists.setdefault(name.rpartition(".")[0], []).append(name)
        with self._without_layers([name for names in lists.values() for name in names]):
            self._find(lists)

    def layer(self, place: int) -> nn.Layer:
        """The layer that is at this place now."""
        return dict(self.model.named_sublayers())[self.names[place]]

    def place_of(self, name: str) -> int:
        """Of the layer that holds the layer ``name``; as many as there are for one that no layer of the chain holds."""
        match = _BLOCK.match(f"{name}.")
        return self.names.index(match[1]) if match and match[1] in self.names else len(self.names)

    def through(self, place: int, states: States, *, cache: Any = None) -> States:
        """What the layer at ``place`` gives for each batch; ``states``: what the one before gave, nothing for the first. The
        layer has values; what else the pass reads is borrowed. At the place behind the last, the pass goes to its end."""
        found: States = []
        whole = place == len(self.names)
        with ExitStack() as stack:
            current = stack.enter_context(self._standing_in(place))
            if not whole:
                stack.callback(self.layer(place).register_forward_post_hook(_stop).remove)
            stack.enter_context(borrowed(self._outside(place)))
            stack.enter_context(paddle.no_grad())
            for number, ids in enumerate(self.batches):
                current[:] = states[number : number + 1]
                try:
                    self.model.features(paddle.to_tensor(ids), **({} if cache is None else {"cache": cache}))
                except _Done as done:
                    found.append(done.args[0])
        return found

    @contextmanager
    def _standing_in(self, place: int) -> Iterator[list[Any]]:
        """Layers before ``place`` give the entry of the list, and what enters the first gives the stream in it."""
        current: list[Any] = []
        named = dict(self.model.named_sublayers())
        layers = [named[name] for name in self.names[:place]]
        for layer in layers:
            vars(layer)["forward"] = lambda *args, **kwargs: current[0]
        if layers and self._entry is not None:
            vars(self._entry)["forward"] = lambda *args, **kwargs: _stream(current[0])
            layers.append(self._entry)
        try:
            yield current
        finally:
            for layer in layers:
                vars(layer).pop("forward", None)

    def _outside(self, place: int) -> list[Tensor]:
        """What a pass to ``place`` may read beside the layers of the chain: not the head, which is above it, and not what the
        layers' stand-ins make superfluous."""
        layers = dict(self.model.named_sublayers())
        spared = [tensor for name in self.names for tensor in tensors_of(layers[name])]
        if place:
            head, *_ = self.model.head()
            spared += [head, *([] if self._entry is None else tensors_of(self._entry))]
        known = set(map(id, spared))
        return [tensor for tensor in tensors_of(self.model) if is_stored(tensor) and id(tensor) not in known]

    @contextmanager
    def _without_layers(self, names: list[str]) -> Iterator[None]:
        """Everything outside of these layers has values."""
        layers = dict(self.model.named_sublayers())
        inside = {id(tensor) for name in names for tensor in tensors_of(layers[name])}
        with borrowed([tensor for tensor in tensors_of(self.model) if id(tensor) not in inside]):
            yield

    def _find(self, lists: dict[str, list[str]]) -> None:
        """The list whose first layer is the first to be called, and the layer that gives what enters it."""
        layers = dict(self.model.named_sublayers())
        given: dict[int, nn.Layer] = {}
        kept: list[Any] = []  # else another tensor may have the number of one that is gone

        def note(layer: nn.Layer, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                kept.append(output)
                given[id(output)] = layer

        def arrive(names: list[str]) -> Callable[..., None]:
            def stop(layer: nn.Layer, inputs: Any) -> None:
                self.names = names
                self._entry = given.get(id(inputs[0])) if inputs else None
                raise _Done

            return stop

        inner = {name for names in lists.values() for name in names}
        with ExitStack() as hooks, paddle.no_grad():
            for names in lists.values():
                hooks.callback(layers[names[0]].register_forward_pre_hook(arrive(names)).remove)
            for name, layer in layers.items():
                if not any(f"{name}.".startswith(f"{known}.") for known in inner):
                    hooks.callback(layer.register_forward_post_hook(note).remove)
            with suppress(_Done):
                self.model.features(paddle.zeros([1, 2], dtype="int64"))


def _stop(layer: nn.Layer, inputs: Any, output: Any) -> None:
    raise _Done(output)


def _stream(output: Any) -> Tensor:
    """The stream of what a layer gave: the tensor, or the first of several."""
    return output if isinstance(output, Tensor) else output[0]
