"""One pass of a model over new columns of a batch, for the loops that generate: by a kernel in one call where the model can
be described and a kernel is there, else layer by layer. Which tokens there are and what follows is the loops' business.

Letters: b rows, w new columns, K columns with the new ones, V vocabulary, H hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
import paddle  # noqa: TID253
from erniecore_system import mapped
from numpy.typing import NDArray

from erniecore.api import ops
from erniecore.api.decoding import DecoderPlan, Planned
from erniecore.api.model_files import codec_of
from erniecore_generation.cache import StaticCache
from erniecore_generation.sampling import Ints

Logits = NDArray[np.float32]
#: of which new columns logits are wanted: the head of a large vocabulary is a good part of a pass
Wanted: TypeAlias = Literal["all", "last", "none"]


class Passes:
    """Runs a model in evaluation mode, without gradients. Made for one generation: layers may change between two.

    Attributes:
        in_one_call: whether a kernel computes whole passes; long prompts go layer by layer all the same.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        plannable = isinstance(model, Planned) and codec_of(model) is None
        self._plan: DecoderPlan | None = model.decoder_plan() if plannable else None
        self._step = None if self._plan is None else ops.decoder_step(self._plan)

    @property
    def in_one_call(self) -> bool:
        """Whether a kernel computes whole passes."""
        return self._step is not None

    def takes(self, rows: int, columns: int) -> bool:
        """Whether a kernel computes a whole pass of so many new columns for each of ``rows``."""
        return self._step is not None and self._step.takes(rows, columns)

    def last(self, ids: Ints, positions: Ints, mask: NDArray[Any] | None, cache: StaticCache | None) -> Logits:
        """float32 [b, V] after the last column.

        Args:
            ids, positions: int64 [b, w]. mask: [b, K], 1 = a token of the row; None: all are.
        """
        if self._step is not None and cache is not None and self._step.takes(*ids.shape):
            w = ids.shape[1]
            return self._in_one_call(ids, positions, mask, cache, np.arange(w - 1, ids.size, w), None)
        return self._logits(self._features(ids, positions, mask, cache).hidden[:, -1])

    def every(
        self,
        ids: Ints,
        positions: Ints,
        mask: NDArray[Any] | None,
        cache: StaticCache,
        *,
        logits: Wanted,
        residual: bool,
        inputs: Mapping[str, NDArray[Any]] | None = None,
    ) -> tuple[Logits, Any]:
        """(float32 [b, w, V], [b, 1, V] of the last column, or an empty array; ``Features.residual`` [b, w, H], if ``residual``
        wants it).

        ``inputs``: further inputs of the model by name, for prompts with images; their ``positions`` are [b, w, axes]."""
        if positions.ndim > 2 or self._step is None or not self._step.takes(*ids.shape):
            features = self._features(ids, positions, mask, cache, inputs)
            if logits == "none":
                mapped.check()
                return np.empty((len(ids), 0, 0), np.float32), features.residual
            return self._logits(features.hidden[:, -1:] if logits == "last" else features.hidden), features.residual
        b, w = ids.shape
        places = {"all": np.arange(b * w), "last": np.arange(w - 1, b * w, w), "none": np.arange(0)}[logits]
        size = [b, w, self._plan.embedding.shape[1]] if residual and self._plan is not None else None
        kept = None if size is None else paddle.empty(size, "float32")
        found = self._in_one_call(ids, positions, mask, cache, places, kept)
        return found.reshape(b, len(places) // b, found.shape[-1]), kept

    def _in_one_call(
        self, ids: Ints, positions: Ints, mask: Any, cache: StaticCache, places: Ints, residual: Any
    ) -> Logits:
        assert self._step is not None
        assert self._plan is not None
        (b, w), start, d = ids.shape, cache.length, self._plan.head_dim
        layers = len(self._plan.blocks)
        keys, values = cache.room(layers, w, [b, self._plan.blocks[0].k.outputs // d, d])
        logits = self._step.run(ops.NewTokens(ids, positions, mask, keys, values, start, places, residual))
        cache.wrote(layers, w)
        mapped.check()
        return logits

    def _features(
        self,
        ids: Ints,
        positions: Ints,
        mask: Any,
        cache: StaticCache | None,
        inputs: Mapping[str, NDArray[Any]] | None = None,
    ) -> Any:
        return self.model.features(
            ops.tensor_of(ids),
            position_ids=ops.tensor_of(positions),
            attention_mask=None if mask is None else ops.tensor_of(mask),
            cache=cache,
            **{name: ops.tensor_of(values) for name, values in (inputs or {}).items()},
        )

    def _logits(self, hidden: Any) -> Logits:
        logits: Logits = self.model.logits(hidden).astype("float32").numpy()
        mapped.check()  # zeros in place of weights are no error by themselves
        return logits
