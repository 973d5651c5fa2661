"""Ring attention: a rank of a context keeps the keys and values of its own positions and passes them around, while it computes
with those that it has; in the backward pass their gradients go around with them. No rank has the keys of a whole row.

Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context" (2023), arXiv:2310.01889. Each rank has two
chunks of a row, one from the front and one from the back (``positions.py``), so that in every turn but the first the same half
of the products is left under the causal mask: the balance of Brandon et al., "Striped Attention" (2023), arXiv:2311.09431, with
whole chunks, as in Megatron-LM and in PyTorch's context parallelism. Results are added by the logarithms of their sums
(``erniecore.api.ops.partial_attention``).

Letters: B sequences, s positions here, c ranks, hq query heads, hk key heads, d head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle  # noqa: TID253
import paddle.distributed as dist  # noqa: TID253
from numpy.typing import NDArray
from paddle import Tensor  # noqa: TID253
from paddle.autograd import PyLayer  # noqa: TID253

from erniecore.api import ops
from erniecore_hybrid_parallel.background import Pending, Worker
from erniecore_hybrid_parallel.comm import POOR, Comm, num_bytes
from erniecore_hybrid_parallel.groups import World
from erniecore_hybrid_parallel.mesh import Mesh, edges


class Ring:
    """Ranks in a circle, each of which sends to the next one and receives from the one before.

    Args:
        comm: the ranks. there, back: with the next rank and with the one before, on backends without messages that do not wait.
    """

    def __init__(self, comm: Comm, there: Comm, back: Comm) -> None:
        self.comm, self._there, self._back = comm, there, back
        self._next, self._before = (comm.ranks[(comm.index + step) % comm.size] for step in (1, -1))
        self._sender, self._receiver = Worker(f"to-{self._next}"), Worker(f"from-{self._before}")
        for one in (comm, there, back):
            one.beside = True

    def __deepcopy__(self, memo: dict[int, Any]) -> Ring:
        return self

    def pass_on(self, tensor: Tensor) -> Pending:
        """Begin to send ``tensor``, which must not change meanwhile; gives what the rank before sends, alike in shape."""
        tensor = tensor.contiguous()
        coming = paddle.empty(tensor.shape, tensor.dtype)
        if self.comm.backend in POOR:
            going: Sequence[Any] = (
                self._sender.start(lambda: self._send(tensor)),
                self._receiver.start(lambda: self._receive(coming)),
            )
        else:
            both = [
                dist.P2POp(dist.isend, tensor, self._next, self.comm.group),
                dist.P2POp(dist.irecv, coming, self._before, self.comm.group),
            ]
            with self.comm.together("hand over", num_bytes(tensor)):
                going = dist.batch_isend_irecv(both)
        return Pending(self.comm, going, lambda: coming, [tensor])

    def _send(self, tensor: Tensor) -> None:
        with self._there.together("hand over", num_bytes(tensor)):
            dist.send(tensor, self._next, group=self._there.group)

    def _receive(self, coming: Tensor) -> None:
        with self._back.together("hand over", 0):
            dist.recv(coming, self._before, group=self._back.group)


def open_ring(mesh: Mesh, world: World) -> Ring:
    """The ring of this rank's context. Every rank calls it, because it creates process groups."""
    lines = mesh.groups("context")
    comm = world.comm(lines, "ring")
    there = back = comm
    if world.backend in POOR:
        for line in lines:
            for sender, receiver in edges(line, 1, True):
                found = world.comm([[sender, receiver]], "ring edge")
                there, back = (found if world.rank == end else old for end, old in ((sender, there), (receiver, back)))
    return Ring(comm, there, back)


@dataclass(frozen=True)
class Turn:
    """Which queries here attend to which of the keys that are here in one turn."""

    rows: slice
    keys: slice
    visible: ops.VisibleKeys


class RingAttention:
    """What the row indices of shared rows carry: attention of the positions here to those of the whole row.

    Args:
        ring: the ranks of the context. places: [c, s], the positions of each rank, ascending. ends: int32 [B, S], the first
            row that no longer attends to each column.
    """

    def __init__(self, ring: Ring, places: NDArray[np.int64], ends: NDArray[np.int32]) -> None:
        self.ring = ring
        count, index = ring.comm.size, ring.comm.index
        mine, chunk = places[index], places.shape[1] // 2
        everything = slice(0, 2 * chunk)
        turns = []
        for turn in range(count):
            source = (index - turn) % count
            # what comes from ranks before this one: of their first chunk all; from ranks behind it: all for the second chunk here
            rows = everything if source <= index else slice(chunk, 2 * chunk)
            keys = everything if source >= index else slice(0, chunk)
            own_ends = np.searchsorted(mine[rows], ends[:, places[source][keys]]).astype(np.int32)
            visible = ops.VisibleKeys(own_ends, rows.stop - rows.start, causal=turn == 0)
            turns.append(None if visible.none else Turn(rows, keys, visible))
        self.turns = turns

    def attention(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None) -> Tensor:
        """q [B, s, hq, d], k, v [B, s, hk, d] -> [B, s, hq, d] in the dtype of ``v``; float32 inside, float64 for float64."""
        scale = float(q.shape[-1] ** -0.5) if scale is None else scale
        # views would lose their strides when they are kept for recomputation
        q, k, v = (x.contiguous() for x in (q, k, v))
        y: Tensor = _RingAttention.apply(q, k, v, self, scale)
        return y

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """(out [B, s, hq, d], log2 of the sums [B, hq, s])."""
        wide = _wide(q)
        (B, s, hq, _), pair, q = q.shape, paddle.stack([k, v]), _as(q, wide)
        out, lse = paddle.zeros(q.shape, wide), paddle.full([B, hq, s], ops.NOTHING, wide)
        for number, turn in enumerate(self.turns):
            coming = self.ring.pass_on(pair) if number + 1 < len(self.turns) else None
            if turn is not None:
                rows, keys, values = turn.rows, *_at(pair, turn.keys, wide)
                one = ops.partial_attention(_rows(q, rows), keys, values, turn.visible, scale)
                if number:
                    one = ops.add_attention((out[:, rows], lse[:, :, rows]), one)
                out[:, rows], lse[:, :, rows] = one
            pair = pair if coming is None else coming.wait()
        return out, lse

    def backward(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dy: Tensor, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(dq, dk, dv) of what :func:`forward` gives, in the shapes of q, k and v; ``dy`` is the gradient of ``out``."""
        wide = _wide(q)
        pair, dq = paddle.stack([k, v]), paddle.zeros(q.shape, wide)
        q, dy = _as(q, wide), _as(dy, wide)
        around: Pending | None = None
        for number, turn in enumerate(self.turns):
            coming = self.ring.pass_on(pair) if number + 1 < len(self.turns) else None
            gradients = paddle.zeros(pair.shape, wide)
            if turn is not None:
                rows, keys, values = turn.rows, *_at(pair, turn.keys, wide)
                mine = _rows(q, rows), keys, values, _rows(out, rows), lse[:, :, rows].contiguous(), _rows(dy, rows)
                more, *found = ops.partial_attention_backward(*mine, turn.visible, scale)
                dq[:, rows] = dq[:, rows] + more
                gradients[0, :, turn.keys], gradients[1, :, turn.keys] = found
                del keys, values, mine, more, found
            if around is not None:
                gradients = gradients.add_(around.wait())
            around = self.ring.pass_on(gradients)
            pair = pair if coming is None else coming.wait()
        assert around is not None
        home = around.wait()
        return dq, home[0], home[1]


def _wide(x: Tensor) -> str:
    return "float64" if x.dtype == paddle.float64 else "float32"


def _as(x: Tensor, dtype: str) -> Tensor:
    """``x`` itself where it has the dtype."""
    return x if x.dtype == getattr(paddle, dtype) else x.astype(dtype)


def _rows(x: Tensor, rows: slice) -> Tensor:
    """Some positions of [B, s, h, d]; ``x`` itself where these are all."""
    return x if rows.stop - rows.start == x.shape[1] else x[:, rows].contiguous()


def _at(pair: Tensor, keys: slice, dtype: str) -> tuple[Tensor, Tensor]:
    """Keys and values [B, n, hk, d] of some positions."""
    key, value = (_as(_rows(x, keys), dtype) for x in (pair[0], pair[1]))
    return key, value


class _RingAttention(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, rows: RingAttention, scale: float) -> Tensor:
        out, lse = rows.forward(q.detach(), k.detach(), v.detach(), scale)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.rows, ctx.scale, ctx.frozen = rows, scale, tuple(bool(x.stop_gradient) for x in (q, k, v))
        return out.astype(v.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = (x.detach() for x in ctx.saved_tensor())
        found = ctx.rows.backward(q, k, v, out, lse, dy.detach(), ctx.scale)
        given = zip(ctx.frozen, found, (q, k, v), strict=True)
        return tuple(None if is_frozen else dx.astype(x.dtype) for is_frozen, dx, x in given)
