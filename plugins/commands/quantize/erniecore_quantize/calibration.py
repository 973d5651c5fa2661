"""Data of ``ernie quantize``: token ids for the calibration of a quantizer, and the loss of the model before and after
quantization.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from erniecore_eval.suites import Item, Score, ScoreTable
from numpy.typing import NDArray

from erniecore.api import EnvironmentFault
from erniecore.api.installation import assemble, load
from erniecore.api.rows import Source

if TYPE_CHECKING:
    from erniecore.api.model import ModelBundle

#: tokens per calibration batch
TOKENS = 2048
#: rows per batch when the loss is measured
ROWS = 8


@dataclass(frozen=True)
class Rows:
    """Rows of data files, encoded by a method for a model's tokenizer."""

    method: str
    items: list[Item]

    def batches(self, length: int) -> list[NDArray[np.int64]]:
        """The rows joined and split into batches int64 [B, S] with S = ``length`` (less where there are fewer tokens), without
        padding; an incomplete last sequence is dropped."""
        ids = np.concatenate([sample.input_ids for item in self.items for sample in item.samples]).astype(np.int64)
        size = min(length, len(ids))
        rows = ids[: len(ids) // size * size].reshape([-1, size])
        each = max(TOKENS // size, 1)
        return [rows[start : start + each] for start in range(0, len(rows), each)]

    def score(self, bundle: ModelBundle) -> Score:
        """Mean loss over the loss tokens of all rows; of an empty model, a layer has values while it is used. Raises
        ``NumericsError`` for one that is not finite."""
        from erniecore_eval import scoring

        from erniecore.api.layers import borrowed_on_use

        plugin = load("method", self.method)
        parts = {"policy": bundle.model, "reference": None, "tokenizer": bundle.tokenizer}
        objective: Any = assemble({"method": plugin}).call(
            plugin, "ernie_build_objective", config=plugin.Config(), **parts
        )
        table = ScoreTable()
        with borrowed_on_use(bundle.model):
            scoring.add_losses(table, self.items, objective, bundle, ROWS)
        return table.total


def read_rows(files: Sequence[str], method: str, bundle: ModelBundle, max_seq_len: int = 2048) -> Rows:
    """The rows of ``files`` as ``method`` (``sft``, ``pt``) encodes them.

    Raises:
        DataError: a file cannot be used, or no row is left. EnvironmentFault: the model has no tokenizer.
    """
    from erniecore_eval.items import read_items

    if bundle.tokenizer is None:
        raise EnvironmentFault(
            "the model has no tokenizer, so no rows can be read", fix="put its files beside config.json"
        )
    plugin = load("method", method)
    length = min(max_seq_len, int(bundle.architecture.get("max_position_embeddings") or max_seq_len))
    given = {"config": plugin.Config(), "tokenizer": bundle.tokenizer, "max_length": length, "too_long": "auto"}
    encoder = assemble({"method": plugin}).call(plugin, "ernie_build_encoder", **given)
    return Rows(method, read_items([Source(path=file) for file in files], encoder)[0])
