"""NEFTune: uniform noise on the embeddings of the tokens that a model learns from, in training only.

    x ← x + α / √(L d) ε        ε ~ U(−1, 1) per token and dimension; L: tokens of the sample, d: width of the embedding

Jain et al., "NEFTune: Noisy Embeddings Improve Instruction Finetuning" (2023), arXiv:2310.05914, algorithm 1. L is the sample's
own length, so that padding and packing change nothing.

ε is a function of (seed of the step, tokens of the sample, position) alone, by ``erniecore_ops.random_values``: the same in
whichever row, micro-batch or rank the sample is, and again in a run that continues. Its 65,536 values are the middles of as many
equal parts of (−1, 1).

Letters: B batch, S sequence, L tokens of one sample, H hidden.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle  # noqa: TID253
from erniecore_ops.random_values import Distribution, draw, table_of

from erniecore.api import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from erniecore.api.method import Batch

#: in the name of the layer that makes vectors of token ids, in every supported model
EMBEDDING = "embed"
_UNIFORM = table_of(Distribution("uniform", -1.0, 1.0)).astype(np.float32)


class EmbeddingNoise:
    """Noise on the embeddings of one model.

    Args:
        policy: a ``CausalLM``. alpha: α, above 0.
    Attributes:
        seed: of the step.
    """

    def __init__(self, policy: Any, alpha: float) -> None:
        self.policy, self.alpha, self.seed = policy, alpha, 0

    @contextmanager
    def added(self, batch: Batch) -> Iterator[None]:
        """Within the block the model's embeddings of ``batch`` have noise. A layer that embeds tokens again, such as one of
        multi-token prediction, gets noise of its own.

        Raises:
            UsageError: the model has embedded something else than the tokens of the batch, or nothing.
        """
        calls = 0

        def add(layer: Any, inputs: Any, output: Any) -> Any:
            nonlocal calls
            if list(output.shape[:2]) != list(batch.input_ids.shape):
                raise _no_place(f"{list(output.shape)} for tokens {list(batch.input_ids.shape)}")
            noise = noise_of(batch, int(output.shape[-1]), self.alpha, f"{self.seed}/{calls}")
            calls += 1
            return output + paddle.to_tensor(noise).astype(output.dtype)

        layers = [layer for name, layer in self.policy.named_sublayers() if _embeds_tokens(name, layer)]
        handles = [layer.register_forward_post_hook(add) for layer in layers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        if not calls:
            raise _no_place("no layer of that name")


def _embeds_tokens(name: str, layer: Any) -> bool:
    return EMBEDDING in name.rpartition(".")[2] and "patch" not in name and not list(layer.sublayers())


def _no_place(found: str) -> UsageError:
    return UsageError(
        "this model's embeddings cannot get noise",
        where="method.neftune_alpha",
        found=found,
        expected=f"one layer with {EMBEDDING!r} in its name, of ids [B, S] vectors [B, S, H]",
        fix="set it to 0",
    )


def noise_of(batch: Batch, width: int, alpha: float, key: str) -> NDArray[np.float32]:
    """Noise of all tokens of ``batch``, float32 [B, S, width]; padding has none.

    Args:
        key: of the step; the tokens of each sample are added to it.
    """
    noise = np.zeros((*batch.input_ids.shape, width), np.float32)
    for row, start, stop in stretches(batch.startend_row_indices[:, 0, :, 0]):
        tokens = hashlib.blake2b(batch.input_ids[row, start:stop].tobytes(), digest_size=16).hexdigest()
        drawn = draw(f"{key}/{tokens}", (stop - start, width), _UNIFORM)
        np.multiply(drawn, np.float32(alpha / sqrt((stop - start) * width)), out=noise[row, start:stop])
    return noise


def stretches(ends: NDArray[np.int32]) -> Iterator[tuple[int, int, int]]:
    """(row, start, stop) of every sample of a batch, from the ends [B, S] of what attends to each position; padding columns,
    which end at themselves, are none."""
    for row, bounds in enumerate(ends):
        start = 0
        while start < len(bounds):
            stop = int(bounds[start])
            if stop > start:
                yield row, start, stop
            start = max(stop, start + 1)
