"""Context parallelism: each rank computes some positions of each sequence. Also the beginning and end of a model under sequence
parallelism. The hidden states of all ranks are gathered at the end of ``features``, so objectives get full sequences.

A sequence is split into 2 c chunks; rank i of c has chunks i and 2 c - 1 - i, which balances the work under a causal mask.
Keys and values are gathered for each attention and their gradients scattered: Dubey et al., "The Llama 3 Herd of Models"
(2024), arXiv:2407.21783, section 3.3.2; or they go around (``ring.py``). Sequences of other lengths are padded at the end
with masked positions. Stages of a pipeline send each other the positions of a rank.

All ranks of a context group compute the same loss from the gathered hidden states. Each divides it by c
(``erniecore.api.parallel.ProcessGroup.replication_factor``), and every collective has its exact adjoint, so the gradient of a
parameter is the sum over the ranks.

Letters: B sequences, S positions, s local positions, L of a chunk, c ranks, hq query heads, hk key heads, d head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import paddle  # noqa: TID253
from numpy.typing import NDArray
from paddle import Tensor  # noqa: TID253

from erniecore.api import ConfigError, ops
from erniecore.api.experts import SequenceStatistics
from erniecore.api.layers import derived
from erniecore.api.method import IGNORE
from erniecore.api.parallel import Features
from erniecore_hybrid_parallel.comm import Comm
from erniecore_hybrid_parallel.regions import collect, join, local_slice, total
from erniecore_hybrid_parallel.ring import Ring, RingAttention
from erniecore_hybrid_parallel.tensor import Shard

Ints = NDArray[np.int64]


class ContextShard:
    """Which positions this rank has: the same object in every copy of a model.

    Args:
        context: ranks with the same rows. shard: ranks that share matrices and, where it says so, positions again.
        ring: by which keys and values go around; without one they are gathered.
    """

    def __init__(self, context: Comm, shard: Shard, ring: Ring | None = None) -> None:
        self.context, self.shard, self.ring = context, shard, ring
        self.active = True

    def __deepcopy__(self, memo: dict[int, Any]) -> ContextShard:
        return self

    @property
    def inner(self) -> int:
        """Among how many ranks the positions of this rank of the context are divided again."""
        return self.shard.comm.size if self.shard.sequence else 1

    def padded(self, length: int) -> int:
        """The length that all ranks can divide."""
        step = self.inner * (2 * self.context.size if self.context.size > 1 else 1)
        return -(-length // step) * step

    def here(self, length: int) -> int:
        """How many positions of a row of ``length`` the hidden states on this rank have."""
        return self.padded(length) // (self.context.size * self.inner)

    def order(self, length: int) -> Ints:
        """Positions of a padded row in the order in which the ranks of the context have them."""
        count = self.context.size
        chunks = np.arange(length).reshape([2 * count, -1] if count > 1 else [1, -1])
        return np.concatenate([chunks[i] for r in range(count) for i in sorted({r, len(chunks) - 1 - r})])

    def by_rank(self, length: int) -> Ints:
        """[c, s]: positions of each rank of the context, ascending."""
        return self.order(length).reshape([self.context.size, -1])

    def mine(self, length: int) -> Ints:
        """Positions of this rank of the context."""
        found: Ints = self.by_rank(length)[self.context.index]
        return found

    def attention(self, ends: NDArray[np.int32]) -> RowAttention | RingAttention:
        """Attention of the positions here to whole rows [B, S]; ``ends``: the first row that no longer attends to each column."""
        if self.ring is None:
            return RowAttention(self, ends)
        return RingAttention(self.ring, self.by_rank(ends.shape[1]), ends)

    def collected(self, x: Tensor) -> Tensor:
        """[B, s, ...] of the ranks of the context -> [B, S, ...] in the order of the row."""
        if self.context.size == 1:
            return x
        joined = collect(x, self.context, 1)
        return paddle.gather(joined, paddle.to_tensor(np.argsort(self.order(joined.shape[1]))), axis=1)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Inside, every rank has all positions: text is generated one position after the other."""
        before = self.active, self.shard.sequence
        self.active = self.shard.sequence = False
        try:
            yield
        finally:
            self.active, self.shard.sequence = before

    # ---- what a block asks whose statistics see whole rows
    def own(self, values_Bs: Tensor) -> Tensor:
        """Of the positions of this rank of the context those that are here."""
        return local_slice(values_Bs, self.shard.comm, 1) if self.shard.sequence else values_Bs

    def joined(self, values: Tensor) -> Tensor:
        """[B, positions here, n] -> [B, S, n], in the order of the row."""
        if self.shard.sequence:
            values = join(values, self.shard.comm, 1)
        return self.collected(values) if self.active else values

    def cut(self, values: Tensor) -> Tensor:
        """[B, S, n] -> [B, positions here, n]; the last position is repeated up to a length that all ranks can divide."""
        length = values.shape[1]
        if self.active:
            places = np.minimum(self.mine(self.padded(length)), length - 1)
            values = paddle.gather(values, paddle.to_tensor(places), axis=1)
        return local_slice(values, self.shard.comm, 1) if self.shard.sequence else values

    def common(self, loss: Tensor) -> Tensor:
        """A loss of weights alone: ranks that share positions within a matrix sum its gradient."""
        return loss.detach() + (loss - loss.detach()) / self.inner

    def largest(self, values: Tensor) -> Tensor:
        """Elementwise over the ranks of the context; those within a matrix have the same inputs, or ask for themselves."""
        return self.context.all_max(values.clone())


class RowAttention:
    """What the row indices of shared rows carry: attention of the positions here to those of the whole row.

    Args:
        ends: int32 [B, S], the first row that no longer sees each column.
    """

    def __init__(self, shard: ContextShard, ends: NDArray[np.int32]) -> None:
        self.shard, self.ends = shard, ends

    def attention(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None) -> Tensor:
        """q [B, s, hq, d], k, v [B, s, hk, d] -> [B, s, hq, d]."""
        kv = self.shard.collected(paddle.concat([k, v], axis=-1))
        size, length = k.shape[-1], kv.shape[1]
        chunk = length // (2 * self.shard.context.size)
        found = []
        for place, start in enumerate(self.shard.mine(length)[::chunk].tolist()):
            stop, ends = start + chunk, self.ends[:, : start + chunk] - start
            # views would lose their strides when they are kept for recomputation
            rows = q[:, place * chunk : (place + 1) * chunk].contiguous()
            keys, values = (segment.contiguous() for segment in (kv[:, :stop, :, :size], kv[:, :stop, :, size:]))
            hidden = None if (ends >= chunk).all() else paddle.to_tensor(ends.reshape([-1, 1, stop, 1]))
            found.append(ops.attention(rows, keys, values, startend_row_indices=hidden, scale=scale))
        return paddle.concat(found, axis=1)


class RowIds:
    """What the ids of shared rows carry: those that come later in the row, and what a model needs to share work that belongs to
    some of the positions, such as images. See ``erniecore.api.parallel.ShardedIds``."""

    def __init__(self, shard: ContextShard, ids: NDArray[Any], length: int) -> None:
        self.shard, self.ids, self.mine, self.length = shard, ids, shard.mine(ids.shape[1]), length
        self.num_ranks, self.rank = shard.context.size, shard.context.index

    def shifted(self, steps: int) -> Tensor:
        rolled = np.roll(self.ids[:, : self.length], -steps, axis=1)
        return paddle.to_tensor(_continued(rolled, self.ids.shape[1])[:, self.mine])

    def own(self, values: NDArray[Any]) -> NDArray[Any]:
        more = self.ids.shape[1] - values.shape[1]
        return np.pad(values, ((0, 0), (0, more)))[:, self.mine]

    def inner(self, values: NDArray[Any]) -> NDArray[Any]:
        return np.split(self.own(values), self.shard.inner, axis=1)[self.shard.shard.comm.index % self.shard.inner]

    def gathered(self, x: Tensor) -> Tensor:
        return collect(x, self.shard.context, 0)


class RowHead:
    """What the weight of a head carries whose rows are shared: each rank computes the logits of its share of the learned
    tokens, and all get the losses."""

    def __init__(self, context: Comm, further: Any) -> None:
        self.context, self.further = context, further

    def linear_cross_entropy(self, hidden: Tensor, weight: Tensor, labels: Tensor, **options: Any) -> Tensor:
        """As ``ops.linear_cross_entropy``; the same on every rank."""
        own = np.full(labels.shape, IGNORE, np.int64)
        where = np.array_split(np.flatnonzero(labels.numpy() != IGNORE), self.context.size)[self.context.index]
        own[where] = labels.numpy()[where]
        compute = ops.linear_cross_entropy if self.further is None else self.further.linear_cross_entropy
        ops.sharded_parameters.bind(weight, None)  # what computes it for one rank is asked for once
        losses: Tensor = compute(hidden, weight, paddle.to_tensor(own), **options)
        ops.sharded_parameters.bind(weight, self)
        return total(losses, self.context)

    def logits(self, hidden: Tensor, weight: Tensor, *, transposed: bool, bias: Tensor | None) -> Tensor:
        """The whole logits: of all positions, which every rank of the context has."""
        compute = ops.head_logits if self.further is None else self.further.logits
        logits: Tensor = compute(hidden, weight, transposed=transposed, bias=bias)
        return logits


class SharedRows:
    """A model that computes the hidden states of some positions."""

    context_shard: ContextShard

    def features(
        self,
        input_ids: Tensor,
        *,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        startend_row_indices: Tensor | None = None,
        cache: Any = None,
        **inputs: Tensor | None,
    ) -> Features:
        """As ``CausalLM.features``, of whole rows; ``inputs`` go to the model as they are, which finds the whole ids beside
        those here. Raises ``ValueError`` for inputs without positions."""
        shard, inner = self.context_shard, super().features  # type: ignore[misc]
        if cache is not None:
            with shard.whole():
                options = {"attention_mask": attention_mask, "startend_row_indices": startend_row_indices}
                found: Features = inner(input_ids, position_ids=position_ids, cache=cache, **options, **inputs)
            return found
        if inputs and position_ids is None:
            raise ValueError("positions follow from whole rows: give position_ids beside the further inputs")
        length = input_ids.shape[1]
        ids, places, ends = whole_rows(shard, input_ids, position_ids, attention_mask, startend_row_indices)
        if inputs:  # a placeholder that is repeated would have no image
            ids[:, length:] = 0
        found = inner(*_own(shard, ids, length), **_masks(shard, places, ends), **inputs)

        def joined(hidden: Tensor) -> Tensor:
            whole = shard.joined(hidden)
            return whole if whole.shape[1] == length else whole[:, :length].contiguous()

        return replace(
            found, hidden=joined(found.hidden), mtp_hidden=tuple(joined(hidden) for hidden in found.mtp_hidden)
        )

    def head(self) -> tuple[Tensor, bool, Tensor | None]:
        """The head; it carries how a loss is shared."""
        weight, transposed, bias = super().head()  # type: ignore[misc]
        if self.context_shard.context.size > 1:
            further = ops.sharded_parameters.of(weight)
            head = RowHead(self.context_shard.context, None if isinstance(further, RowHead) else further)
            ops.sharded_parameters.bind(weight, head)
        return weight, transposed, bias


def whole_rows(
    shard: ContextShard, ids: Tensor, places: Tensor | None, mask: Tensor | None, ends: Tensor | None
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int32]]:
    """Ids, positions (also [B, padded S, axes]) and row indices [B, padded S]; what is hidden, by whatever argument, is hidden by
    its row index.

    What is added at the end repeats the last position, which sees what that one sees and is seen by nobody: the largest value
    of the hidden states, by which they may be rounded, stays what it is without it (but for experts, which compute no padding).
    """
    ids_BS = ids.numpy()
    batch, length = ids_BS.shape
    size = shard.padded(length)
    columns = np.arange(length)
    given = None if places is None else places.numpy()
    if given is None:
        given = columns
    places_BS = np.broadcast_to(given, (batch, length, *given.shape[2:]))
    if ends is not None:
        ends_BS = ends.numpy().reshape([batch, length])
    elif places is not None and places_BS.ndim == 2 and mask is None:
        restarts = np.pad(places_BS[:, 1:] <= places_BS[:, :-1], ((0, 0), (0, 1)), constant_values=True)
        starts = np.where(restarts, columns + 1, length)
        ends_BS = np.minimum.accumulate(starts[:, ::-1], axis=1)[:, ::-1]
    else:
        ends_BS = np.full((batch, length), size)
    if mask is not None:
        ends_BS = np.where(mask.numpy() != 0, ends_BS, columns)
    padding = np.broadcast_to(np.arange(length, size), (batch, size - length))
    ends_BS = np.concatenate([np.where(ends_BS >= length, size, ends_BS), padding], axis=1).astype(np.int32)
    return _continued(ids_BS, size), _continued(places_BS, size), ends_BS


def _continued(values_BS: NDArray[Any], size: int) -> NDArray[Any]:
    """[B, S, …] -> [B, size, …]: the last column once more as often as it takes."""
    more = ((0, 0), (0, size - values_BS.shape[1]), *((0, 0),) * (values_BS.ndim - 2))
    return np.pad(values_BS, more, mode="edge")


def _own(shard: ContextShard, ids: NDArray[Any], length: int) -> tuple[Tensor]:
    rows = RowIds(shard, ids, length)
    own = paddle.to_tensor(rows.own(ids))
    ops.sharded_ids.bind(own, rows)
    return (own,)


def _masks(shard: ContextShard, places: NDArray[Any], ends: NDArray[np.int32]) -> dict[str, Tensor]:
    """Positions, and row indices: without a context as they are; else such that tell padding, and carry the rest."""
    mine = shard.mine(places.shape[1])
    if shard.context.size == 1:
        indices = paddle.to_tensor(ends[:, None, :, None])
    else:
        real = ends[:, mine] > mine
        rows = np.where(real, len(mine), np.arange(len(mine))).astype(np.int32)
        indices = paddle.to_tensor(rows[:, None, :, None])
        ops.sharded_masks.bind(indices, shard.attention(ends))
    return {"position_ids": paddle.to_tensor(places[:, mine].astype(np.int64)), "startend_row_indices": indices}


def shard_positions(model: Any, shard: ContextShard) -> Any:
    """``model`` as one that computes its share of the positions of each row.

    Raises:
        ConfigError: a layer whose statistics cannot be computed from shared rows, such as a capacity.
    """
    key = "parallel.context" if shard.context.size > 1 else "parallel.sequence"
    for name, layer in model.named_sublayers():
        if isinstance(layer, SequenceStatistics):
            try:
                layer.shard_sequences(shard)
            except ValueError as error:
                raise ConfigError.at(key, f"{error} ({name})") from error
    return derived(model, SharedRows, context_shard=shard)
