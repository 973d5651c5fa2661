"""Quantizing a model with data, one decoder layer after another, each when the first of its values is asked for: who writes the
model asks layer by layer, so that never more than one of them is in memory. A layer of which files have the quantized values
already (an earlier process got so far) is only passed through.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from paddle import nn  # noqa: TID253

from erniecore.api.layers import borrowed, is_stored, replaced, tensors_of, wait_for
from erniecore_ptq.chain import Chain


class Work(Protocol):
    """How layers are quantized, with what it knows of the layers before."""

    #: whether :meth:`original` is wanted
    needs_original: bool

    def original(self, chain: Chain, place: int) -> None:
        """Instead of :meth:`quantize`, where files have the quantized values: the layer at ``place`` has its original layers,
        with values."""
        ...

    def quantize(self, chain: Chain, place: int, names: Sequence[str]) -> None:
        """Give values to the quantized layers of the layer at ``place``, which has its original layers now, with values. At the
        place behind the last, ``names`` are all layers that the chain does not have. The model may have either at the end."""
        ...

    def passed(self, chain: Chain, place: int, *, stored: bool) -> None:
        """The layer at ``place`` has its quantized layers, with values: take its outputs. ``stored``: these come from files."""
        ...

    def end(self, chain: Chain) -> None:
        """All layers were passed."""
        ...


class NoWork:
    """See :class:`Work`: nothing is quantized."""

    needs_original = False

    def original(self, chain: Chain, place: int) -> None:
        """Outputs of the layer are of no use."""

    def quantize(self, chain: Chain, place: int, names: Sequence[str]) -> None:
        """There are no names."""

    def passed(self, chain: Chain, place: int, *, stored: bool) -> None:
        """Outputs of the layer are of no use."""

    def end(self, chain: Chain) -> None:
        """All values are there."""


class Sweep:
    """The quantized layers of a model in the place of its original ones, without values until they are asked for.

    Args:
        quantized: name -> layer, whose buffers are its own and have the shapes that they will have.
    """

    def __init__(self, chain: Chain, quantized: Mapping[str, nn.Layer], work: Work) -> None:
        layers = dict(chain.model.named_sublayers())
        self.chain, self.work, self.quantized = chain, work, dict(quantized)
        self._originals = {name: layers[name] for name in quantized}
        self._names: dict[int, list[str]] = {}
        self._done = 0
        for name, layer in quantized.items():
            place = chain.place_of(name)
            self._names.setdefault(place, []).append(name)
            replaced(chain.model, name, layer)
            wait_for(layer.buffers(), partial(self.reach, place))

    def reach(self, place: int) -> None:
        """Quantize everything up to ``place``; behind the last, the layers that the chain does not have."""
        last = len(self.chain.names)
        beyond = self._names.get(last, [])
        while self._done <= min(place, last):
            self._done += 1  # an error ends the work
            if self._done <= last:
                with self._original(beyond):
                    self._layer(self._done - 1)
                continue
            if not self._is_stored(beyond):
                with (
                    self._original(beyond),
                    borrowed([t for name in beyond for t in tensors_of(self._originals[name])]),
                ):
                    self.work.quantize(self.chain, last, beyond)
            self.work.end(self.chain)

    def _layer(self, place: int) -> None:
        names = self._names.get(place, [])
        stored = self._is_stored(names)
        if not stored or self.work.needs_original:
            with self._original(names), borrowed(tensors_of(self.chain.layer(place))):
                if stored:
                    self.work.original(self.chain, place)
                else:
                    self.work.quantize(self.chain, place, names)
        with borrowed(tensors_of(self.chain.layer(place))):
            self.work.passed(self.chain, place, stored=stored)

    def _is_stored(self, names: Sequence[str]) -> bool:
        return all(is_stored(buffer) for name in names for buffer in self.quantized[name].buffers())

    @contextmanager
    def _original(self, names: Sequence[str]) -> Iterator[None]:
        """The model has the original layers of these names."""
        for name in names:
            replaced(self.chain.model, name, self._originals[name])
        try:
            yield
        finally:
            for name in names:
                replaced(self.chain.model, name, self.quantized[name])


def all_layers(model: nn.Layer) -> dict[str, Any]:
    """Name -> layer, with the model itself as ``""``."""
    return dict(model.named_sublayers(include_self=True))
