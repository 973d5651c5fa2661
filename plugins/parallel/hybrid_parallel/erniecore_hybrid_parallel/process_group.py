"""The process group of a ``hybrid`` run (``erniecore.api.parallel.ProcessGroup``). Collectives are in ``comm.py``, bucketing of
gradients in ``buckets.py``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from erniecore.api import ConfigError
from erniecore.api.experts import BalancedModel
from erniecore.api.layers import derived
from erniecore.api.parallel import Cluster, Layout, ParameterState, ShardSpec
from erniecore_hybrid_parallel.buckets import all_gather_updates, all_reduce_gradients, by_comm, sum_ends
from erniecore_hybrid_parallel.comm import Comm
from erniecore_hybrid_parallel.config import HybridConfig
from erniecore_hybrid_parallel.decoding import DecodingModel, Rounds
from erniecore_hybrid_parallel.experts import shard_experts
from erniecore_hybrid_parallel.gradients import GradientShards
from erniecore_hybrid_parallel.groups import World, world_of
from erniecore_hybrid_parallel.mesh import AXES, Mesh
from erniecore_hybrid_parallel.overlap import GradientOverlap
from erniecore_hybrid_parallel.parameters import ParameterShards, prepare, share
from erniecore_hybrid_parallel.pipe import open_pipe
from erniecore_hybrid_parallel.placement import Placements
from erniecore_hybrid_parallel.positions import ContextShard, shard_positions
from erniecore_hybrid_parallel.ring import open_ring
from erniecore_hybrid_parallel.stages import build_stage
from erniecore_hybrid_parallel.tensor import Shard, check_head, check_packed, shard_model

#: bytes per rank in the first round of ``all_gather_object``; longer values need a second round
_ROUND = 2040
#: after this many seconds without an ``all_gather_object``, the next one waits at the store first
_LONG = 2.0


class Loads:
    """Sums expert loads over the ranks with different sequences and gathers them over pipeline stages."""

    def __init__(self, batch: Comm, stages: Comm | None) -> None:
        self.batch, self.stages = batch, stages

    @property
    def splits_layers(self) -> bool:
        """Whether the layers are on several pipeline stages."""
        return self.stages is not None

    def sum_tokens(self, loads: Tensor) -> Tensor:
        """A new tensor: the loads of the whole batch."""
        return self.batch.all_reduce(loads.clone())

    def gather_layers(self, rows: Tensor) -> Tensor:
        """Rows of all stages; ``rows`` itself without a pipeline."""
        return rows if self.stages is None else self.stages.all_gather(rows)


class HybridProcessGroup:
    """The processes of a run.

    Args:
        mesh: who does what. world: the processes.
    """

    def __init__(self, config: HybridConfig, mesh: Mesh, world: World) -> None:
        self.config, self.mesh, self.world = config, mesh, world
        self.rank, self.size = world.rank, world.size
        place = mesh.coordinates(self.rank)
        self.counts = place["tensor"] == place["context"] == 0 and place["pipeline"] == mesh.degrees["pipeline"] - 1
        self.replication_factor = mesh.degrees["context"]
        self._sent = 0
        self._meets, self._exchanged = True, time.monotonic()
        self.shards: GradientShards | None = None
        self.overlap: GradientOverlap | None = None
        self.everybody = world.comm([list(range(world.size))])
        self.batch = world.comm(mesh.groups("sharding", "data"))
        self.tensor = world.comm(mesh.groups("tensor"))
        self.placements = Placements(mesh, world, config.async_groups())
        ahead = config.prefetch if config.sharding_stage == 3 else 0
        self.parameters = ParameterShards(ahead, partial(self.placements.async_of, "prefetch"))
        self.pipe = open_pipe(mesh, world, config.chunks) if mesh.degrees["pipeline"] > 1 else None
        self.peers = world.comm(mesh.groups(*(axis for axis in AXES if axis != "pipeline")))
        #: of the first and the last stage, which share some parameters, and the names of these
        self.ends, self.at_both_ends = world.comm(mesh.ends()), frozenset[str]()

    def __deepcopy__(self, memo: dict[int, Any]) -> HybridProcessGroup:
        return self

    def all_gather_object(self, value: Any) -> list[Any]:
        """The values of all ranks, in rank order.

        With a monitored barrier, ranks wait up to ``parallel.timeout``. Without one, they wait at the store first if the pause
        since the last call was long on any rank, because that is slow.
        """
        self.parameters.release()  # between forward passes nothing is kept whole
        if self.size == 1:
            return [value]
        pause = time.monotonic() - self._exchanged
        if self._meets and not self.world.barriers:
            self.world.meet("all_gather_object")
        found = self._gathered([pause, value], self.everybody)
        self._meets = max(pause for pause, _ in found) > _LONG
        self._exchanged = time.monotonic()
        return [item for _, item in found]

    @property
    def in_step(self) -> bool:
        """Whether ranks with different sequences must make their passes together, empty ones too: each pass has a collective
        among them."""
        return self.mesh.expert > 1 or (self.mesh.degrees["sharding"] > 1 and self.config.sharding_stage > 1)

    @property
    def waited(self) -> float:
        """Seconds in collectives so far."""
        return self.world.waited

    @property
    def waiting(self) -> str:
        """The collective and the rank that this rank waits for."""
        return self.world.waiting

    def take_sent(self) -> int:
        """Bytes sent since the last call."""
        before, self._sent = self._sent, self.world.sent
        return self._sent - before

    def watch(self, alarm: Callable[[], None]) -> None:
        """Dump the stacks of all ranks before a wait times out."""
        self.world.watch(alarm)

    def _gathered(self, value: Any, comm: Comm) -> list[Any]:
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        gathered, longest = self._round(text, _ROUND, comm)
        if longest > _ROUND:
            gathered, _ = self._round(text, longest, comm)
        return [json.loads(item.tobytes()) for item in gathered]

    def _round(self, text: Any, room: int, comm: Comm) -> tuple[list[Any], int]:
        """The first ``room`` bytes of each rank's text, and the length of the longest."""
        row = np.zeros([1, 8 + room], np.uint8)
        row[0, :8] = np.frombuffer(np.int64(len(text)).tobytes(), np.uint8)
        row[0, 8 : 8 + min(len(text), room)] = text[:room]
        rows = comm.all_gather(paddle.to_tensor(row)).numpy()
        sizes = [int(np.frombuffer(r[:8].tobytes(), np.int64)[0]) for r in rows]
        return [r[8 : 8 + size] for r, size in zip(rows, sizes, strict=True)], max(sizes)

    def shard_spec(self, name: str, shape: Sequence[int]) -> ShardSpec:
        return self.placements.of(name).shard_spec(name, shape)

    def update_range(self, name: str, shape: Sequence[int]) -> tuple[int, int] | None:
        """Sharding ranks update equal ranges of the flattened parameter; the last ones may be shorter or empty."""
        return self.placements.of(name).update_range(shape)

    def gather_to_host(self, tensor: Tensor, spec: ShardSpec) -> Any:
        return self.gather(tensor, spec).numpy()

    def gather(self, tensor: Tensor, spec: ShardSpec) -> Tensor:
        """All-gathers the flat ranges of the sharding ranks, then the shards along the axis."""
        place, tensor = self.placements.of(spec.name), tensor.detach()
        if spec.flat is not None:
            cut = list(spec.shape)
            cut[spec.axis] //= spec.count
            padded = paddle.zeros([-(-int(np.prod(cut)) // place.sharding.size)], tensor.dtype)
            if tensor.shape[0]:
                padded[: tensor.shape[0]] = tensor
            tensor = place.sharding.all_gather(padded)[: int(np.prod(cut))].reshape(cut)
        if spec.count > 1:
            tensor = place.cut.all_gather(tensor, spec.axis)
        return tensor

    def shard_ranks(self, spec: ShardSpec) -> Sequence[int]:
        place = self.placements.of(spec.name)
        return place.cut.ranks if spec.flat is None else place.together

    def broadcast(self, array: Any, dtype: str, shape: Sequence[int], source: int) -> Any:
        """Broadcast to all ranks; used once, at the end of a run."""
        mine = source == self.rank
        tensor = paddle.to_tensor(array, dtype=dtype) if mine else paddle.empty(list(shape), dtype)
        return self.everybody.broadcast(tensor, source).numpy()

    def attach(self, slots: Sequence[ParameterState]) -> None:
        """Gradients are reduced during the backward pass; in sharding stages 2 and 3 always."""
        async_of = partial(self.placements.async_of, "gradients") if self.config.overlap_gradients else None
        if self.config.sharding_stage > 1:
            self.parameters.slots = {slot.name: slot for slot in slots}
            told = [slot for slot in slots if slot.name not in self.parameters.gathered]
            self.shards = GradientShards(told, self.placements.of, self._all_gather_in_stage, async_of)
        elif async_of is not None and self.size > 1:
            self.overlap = GradientOverlap(
                lambda slot: self.placements.of(slot.name).reduce, async_of, self.at_both_ends
            )
            self.overlap.attach(slots)

    def begin_step(self, micro_batches: int) -> None:
        """Backward passes of so many micro-batches come, the last before :meth:`reduce_gradients`."""
        if self.overlap is not None:
            self.overlap.begin(micro_batches)

    def end_step(self) -> None:
        """The backward passes of a step are done: of sharded gradients nothing is on its way any more."""
        if self.shards is not None:
            self.shards.finish()

    def _all_gather_in_stage(self, value: Any) -> list[Any]:
        """All-gather over the ranks of this stage; during a step, stages are at different points."""
        return self.all_gather_object(value) if self.pipe is None else self._gathered(value, self.peers)

    def backward_done(self) -> None:
        """Free gathered parameters and reduce the gradients of this micro-batch."""
        self.parameters.release()
        if self.shards is not None:
            self.shards.backward_done()

    def reduce_gradients(self, slots: Sequence[ParameterState]) -> None:
        """Sum gradients over the ranks with different sequences or different positions."""
        self.end_step()
        sum_ends([slot for slot in slots if slot.name in self.at_both_ends], self.ends)
        if self.overlap is not None:
            self.overlap.reduce(slots)
        elif self.shards is None:
            for comm, members in by_comm(slots, lambda slot: self.placements.of(slot.name).reduce):
                all_reduce_gradients(members, comm)

    def counts_parameter(self, name: str) -> bool:
        return self.placements.of(name).counts

    def updated(self, slots: Sequence[ParameterState]) -> None:
        """All-gather the ranges that the other sharding ranks updated."""
        parted = [slot for slot in slots if slot.part is not None]
        for comm, members in by_comm(parted, lambda slot: self.placements.of(slot.name).sharding):
            all_gather_updates(members, comm)

    def prepare_parameters(self, model: Any, layout: Layout) -> Any:
        """Called before tensor parallelism, if parameters will be sharded (stage 3)."""
        return prepare(model, layout, self.parameters)

    def share_parameters(self, model: Any, layout: Layout) -> None:
        """Keep only this rank's range of each large parameter (stage 3)."""
        share(model, layout, self.parameters, self.placements)

    def parallelize(self, model: Any, layout: Layout) -> Any:
        """Shard the parameters of the model in place and record their placements.

        Raises:
            ConfigError: a size that the ranks cannot divide, with the key of the axis.
        """
        shard = Shard(self.tensor, sequence=self.config.sequence)
        spread: list[str] = []
        if self.mesh.expert > 1 or self.tensor.size > 1:
            check_packed(model, "parallel.tensor" if self.tensor.size > 1 else "parallel.expert")
            holders, cut = (self.world.comm(self.mesh.expert_groups(*axes)) for axes in ((), ("tensor",)))
            spread = shard_experts(model, layout, holders, cut, shard)
            self.placements.put(spread, self.placements.experts())
        if self.mesh.expert > 1 and not spread:
            raise ConfigError.at("parallel.expert", "this model has no experts to spread over ranks")
        if self.tensor.size > 1:
            model, cuts, partial = shard_model(model, layout, shard, done={*spread})
            for axis in sorted({*cuts.values()}):
                names = [name for name, at in cuts.items() if at == axis]
                self.placements.put(names, self.placements.along(cut=["tensor"], axis=axis))
            self.placements.put(partial, self.placements.along(summed=["tensor"]))
        context = self.world.comm(self.mesh.groups("context"))
        if context.size > 1 or shard.sequence:
            ring = open_ring(self.mesh, self.world) if self.config.rings else None
            model = shard_positions(model, ContextShard(context, shard, ring))
        return model

    def share_layers(self, model: Any, layout: Layout, split: Sequence[int]) -> Any:
        """Keep only the layers of this pipeline stage."""
        assert self.pipe is not None
        check_head(model, "parallel.pipeline")
        model, shared = build_stage(model, layout.stages, self.pipe, split)
        self.at_both_ends, model.no_head.shards = frozenset(shared), self.tensor.size
        for name in shared if self.pipe.stage else ():  # the first stage counts them
            self.placements.put([name], replace(self.placements.of(name), counts=False))
        return model

    def share_decoding(self, model: Any, vocabulary: int) -> Any:
        """The model as one that generates together with the ranks that it needs for a pass; last of all that is made of it."""
        experts, line = (
            self.world.comm(groups) for groups in (self.mesh.expert_groups(), self.mesh.groups("pipeline"))
        )
        if experts.size == line.size == 1 and not self.parameters.prepared:
            return model
        return derived(model, DecodingModel, rounds=Rounds(experts, line, self.parameters, vocabulary))

    def attach_model(self, model: Any, objective: Any) -> None:
        """Sum expert loads over the batch."""
        if isinstance(model, BalancedModel):
            stages = self.world.comm(self.mesh.groups("pipeline")) if self.pipe is not None else None
            model.reduce_loads(Loads(self.batch, stages))

    def close(self) -> None:
        """Nothing to close: the process ends."""


def open_process_group(config: HybridConfig, mesh: Mesh, cluster: Cluster) -> HybridProcessGroup:
    """Connect to the other ranks. Raises ``EnvironmentFault`` if they do not connect in time."""
    return HybridProcessGroup(config, mesh, world_of(cluster, config.timeout))
