"""What the processes of a ``hybrid`` run do together during training; see ``erniecore.api.Ranks``. How a group computes
a sum is in ``comm.py``, how many gradients become few messages in ``buckets.py``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from erniecore.api import Cluster, Layout, Piece
from erniecore_hybrid_parallel.buckets import all_reduce_gradients, gather_parts
from erniecore_hybrid_parallel.config import HybridConfig
from erniecore_hybrid_parallel.gradients import GradientShards
from erniecore_hybrid_parallel.groups import World, world_of
from erniecore_hybrid_parallel.mesh import Mesh
from erniecore_hybrid_parallel.tensor import shard_model

#: bytes that each rank gives in the first round of an exchange; longer values need a second
_ROUND = 2040
#: seconds without an exchange that make the next one a meeting
_LONG = 2.0


class HybridRanks:
    """The processes of a run.

    Args:
        mesh: who does what. world: the processes.
    """

    def __init__(self, config: HybridConfig, mesh: Mesh, world: World) -> None:
        self.config, self.mesh, self.world = config, mesh, world
        self.rank, self.size = world.rank, world.size
        place = mesh.coordinates(self.rank)
        self.counts = place["tensor"] == 0
        self._meets, self._exchanged = True, time.monotonic()
        #: name -> axis of parameters that are cut among the tensor ranks
        self.cuts: dict[str, int] = {}
        self.shards: GradientShards | None = None
        self.everybody = world.comm([list(range(world.size))])
        self.batch = world.comm(mesh.groups("sharding", "data"))
        self.replicas = world.comm(mesh.groups("data"))
        self.sharding = world.comm(mesh.groups("sharding"))
        self.tensor = world.comm(mesh.groups("tensor"))

    def __deepcopy__(self, memo: dict[int, Any]) -> HybridRanks:
        return self

    def exchange(self, value: Any) -> list[Any]:
        """What every rank gave, in the order of ranks.

        Where the last pause between two exchanges was long on any rank, the next may be longer: then the ranks meet at
        the store, which is slow but has ``parallel.timeout``; a collective of gloo has 30 s.
        """
        if self.size == 1:
            return [value]
        pause = time.monotonic() - self._exchanged
        if self._meets:
            self.world.meet("exchange")
        found = self._gathered([pause, value])
        self._meets = max(part[0] for part in found) > _LONG
        self._exchanged = time.monotonic()
        return [part[1] for part in found]

    def _gathered(self, value: Any) -> list[Any]:
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        parts, longest = self._round(text, _ROUND)
        if longest > _ROUND:
            parts, _ = self._round(text, longest)
        return [json.loads(part.tobytes()) for part in parts]

    def _round(self, text: Any, room: int) -> tuple[list[Any], int]:
        """What of each rank's bytes fits into ``room``, and how many the longest has."""
        row = np.zeros([1, 8 + room], np.uint8)
        row[0, :8] = np.frombuffer(np.int64(len(text)).tobytes(), np.uint8)
        row[0, 8 : 8 + min(len(text), room)] = text[:room]
        rows = self.everybody.all_gather(paddle.to_tensor(row)).numpy()
        sizes = [int(np.frombuffer(r[:8].tobytes(), np.int64)[0]) for r in rows]
        return [r[8 : 8 + size] for r, size in zip(rows, sizes, strict=True)], max(sizes)

    def piece(self, name: str, shape: Sequence[int]) -> Piece:
        """A cut along the axis that the layout says, or all of it."""
        axis = self.cuts.get(name)
        if axis is None:
            return Piece(tuple(shape))
        whole = [*shape]
        whole[axis] *= self.tensor.size
        return Piece(tuple(whole), axis, self.tensor.index, self.tensor.size)

    def share(self, name: str, shape: Sequence[int]) -> tuple[int, int] | None:
        """The flattened parameter in equal parts, one per sharding rank; the last ones may be shorter or empty."""
        if self.sharding.size == 1:
            return None
        number = int(np.prod(shape))
        size = -(-number // self.sharding.size)
        return min(self.sharding.index * size, number), min((self.sharding.index + 1) * size, number)

    def whole(self, tensor: Tensor, piece: Piece) -> Any:
        """The whole tensor as a numpy array."""
        if piece.flat is not None:
            size = -(-int(np.prod(piece.shape)) // piece.count // self.sharding.size)
            padded = paddle.zeros([size], tensor.dtype)
            if tensor.shape[0]:
                padded[: tensor.shape[0]] = tensor.detach()
            cut = list(piece.shape)
            cut[piece.axis] //= piece.count
            tensor = self.sharding.all_gather(padded)[: int(np.prod(cut))].reshape(cut)
        if piece.count > 1:
            tensor = self.tensor.all_gather(tensor.detach(), piece.axis)
        return np.array(tensor.detach().numpy())

    def attach(self, slots: Sequence[Any]) -> None:
        """From stage 2 on gradients are summed during the backward pass."""
        if self.config.sharding_stage > 1:
            self.shards = GradientShards(slots, self.sharding, self.replicas, self.exchange)

    def backward_done(self) -> None:
        """The backward pass of a micro-batch has ended."""
        if self.shards is not None:
            self.shards.backward_done()

    def reduce_gradients(self, slots: Sequence[Any]) -> None:
        """Sum the gradients over the ranks that saw other rows."""
        if self.shards is None:
            all_reduce_gradients(slots, self.batch)

    def counts_parameter(self, name: str) -> bool:
        """Whether this rank's gradient of a parameter enters the global norm."""
        place = self.mesh.coordinates(self.rank)
        alike = place["data"] == 0 if self.sharding.size > 1 else place["data"] == place["sharding"] == 0
        return alike and (place["tensor"] == 0 or name in self.cuts)

    def updated(self, slots: Sequence[Any]) -> None:
        """Bring the other sharding ranks' parts into the parameters."""
        if self.sharding.size > 1:
            gather_parts(slots, self.sharding)

    def share_matrices(self, model: Any, layout: Layout) -> None:
        """Cut the model's matrices among the tensor ranks."""
        self.cuts = shard_model(model, layout, self.tensor)

    def adopt(self, model: Any, objective: Any) -> None:
        """Expert loads are counted over all rows."""
        balancer = getattr(model, "balancer", None)
        if balancer is not None:
            balancer.all_reduce = lambda loads: self.batch.all_reduce(loads.clone())

    def close(self) -> None:
        """Nothing to give back: the process ends."""


def open_ranks(config: HybridConfig, mesh: Mesh, cluster: Cluster) -> HybridRanks:
    """Meet the other processes; raises ``EnvironmentFault`` when they do not come."""
    return HybridRanks(config, mesh, world_of(cluster, config.timeout))
