"""Rows that ``ernie quantize`` looks at: token ids from which a quantizer learns how large the inputs of layers are, and the
loss of the model on the same or other rows before and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from erniecore import registry
from erniecore.engine.scoring.suites import Board, Item, Score
from erniecore.errors import EnvironmentFault
from erniecore.host import assemble

if TYPE_CHECKING:
    from erniecore.types import ModelBundle

#: tokens of a batch that a quantizer sees
TOKENS = 2048
#: rows at a time of the loss
ROWS = 8


@dataclass(frozen=True)
class Rows:
    """Rows of data files, encoded by a method for a model's tokenizer."""

    method: str
    items: list[Item]

    def batches(self, length: int) -> list[NDArray[np.int64]]:
        """The rows one after the other, cut into int64 [B, S] with S = ``length`` (less where there are fewer tokens), without
        padding; what is left at the end is not used."""
        stream = np.concatenate([sample.input_ids for item in self.items for sample in item.samples]).astype(np.int64)
        size = min(length, len(stream))
        rows = stream[: len(stream) // size * size].reshape([-1, size])
        each = max(TOKENS // size, 1)
        return [rows[start : start + each] for start in range(0, len(rows), each)]

    def score(self, bundle: ModelBundle) -> Score:
        """Loss of the learned tokens of all rows. Raises ``NumericsError`` for one that is not finite."""
        from erniecore.engine.scoring import scoring

        plugin = registry.load("method", self.method)
        parts = {"policy": bundle.model, "reference": None, "tokenizer": bundle.tokenizer}
        objective: Any = assemble({"method": plugin}).call(
            plugin, "ernie_build_objective", config=plugin.Config(), **parts
        )
        board = Board()
        scoring.add_losses(board, self.items, objective, bundle, ROWS)
        return board.total


def read_rows(files: Sequence[str], method: str, bundle: ModelBundle, max_seq_len: int = 2048) -> Rows:
    """The rows of ``files`` as ``method`` (``sft``, ``pt``) encodes them.

    Raises:
        DataError: a file cannot be used, or no row is left. EnvironmentFault: the model has no tokenizer.
    """
    from erniecore.config.core import Source
    from erniecore.engine.scoring.eval_items import read_items

    if bundle.tokenizer is None:
        raise EnvironmentFault(
            "the model has no tokenizer, so no rows can be read", fix="put its files beside config.json"
        )
    plugin = registry.load("method", method)
    length = min(max_seq_len, int(bundle.architecture.get("max_position_embeddings") or max_seq_len))
    given = {"config": plugin.Config(), "tokenizer": bundle.tokenizer, "max_length": length}
    encoder = assemble({"method": plugin}).call(plugin, "ernie_build_encoder", **given)
    return Rows(method, read_items([Source(path=file) for file in files], encoder)[0])
