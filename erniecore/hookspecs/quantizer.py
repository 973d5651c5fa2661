"""Hooks of quantizers. See ``erniecore.hookspecs`` for the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from erniecore.hookspecs.marker import hookspec

if TYPE_CHECKING:
    from erniecore.sections import Section
    from erniecore.types.model import Layer


class QuantizerHooks:
    """One provider: the quantizer of the run, or the one that ``ernie quantize`` names."""

    @hookspec(firstresult=True)
    def ernie_quantize_model(self, config: Section, model: Layer, phase: str) -> Layer:
        """Quantize for ``phase`` "train" (before the adapter) or "export". With the capability ``empty`` parameters have no
        values yet, and the plugin fills a layer before it packs it (``erniecore.api.layers.fill``).

        Example::

            @hookimpl
            def ernie_quantize_model(self, config, model, phase):
                return fake_quantize(model) if phase == "train" else pack(model)
        """

    @hookspec(firstresult=True)
    def ernie_calibrate_model(self, config: Section, model: Layer, batches: Sequence[Any]) -> Layer:
        """The model quantized for use with the help of data: what phase "export" of ``ernie_quantize_model`` builds, with
        codes and scales fitted to ``batches``, int64 arrays [B, S] of token ids without padding. ``ernie quantize`` calls
        it where the plugin's ``capabilities`` has ``"calibrate"``. A packed layer may have ``measured``: parameter ->
        signal to noise of its output on that data, in dB; the model ``quantizer_notes``. Raises ``DataError`` for too
        little data.

        Example::

            @hookimpl
            def ernie_calibrate_model(self, model, batches):
                return pack(model, largest_inputs(model, batches))
        """

    @hookspec(firstresult=True)
    def ernie_packed_bytes(self, config: Section, shapes: Mapping[str, Sequence[int]]) -> Mapping[str, int]:
        """Name -> bytes of those parameters of a model with these ``shapes`` that ``ernie_quantize_model`` stores in another
        form, scales included, for the plan. No paddle. Optional: without it the plan counts them as they were.

        Example::

            @hookimpl
            def ernie_packed_bytes(self, config, shapes):
                return {n: prod(s) + 4 * s[-1] for n, s in shapes.items() if len(s) == 2}
        """
