"""Where the elements of each parameter are, over which ranks its gradients are summed, and who updates what: one table by
parameter name. Each axis of parallelism only fills it; gradients, the global norm, checkpoints and the optimizer's state
read it. No layers here.

Of one parameter a rank holds a *cut*; its state is a flat range of that cut; ranks that hold the same cut and the same
range are *replicas*, which see other rows, or parts of the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from erniecore.api.parallel import ShardSpec
from erniecore_hybrid_parallel.background import AsyncComm
from erniecore_hybrid_parallel.comm import Comm
from erniecore_hybrid_parallel.groups import World
from erniecore_hybrid_parallel.mesh import AXES, BATCH, Mesh

#: axes along which other ranks hold other parameters, so that nothing is replicated
_ELSEWHERE = ("pipeline",)


@dataclass(frozen=True)
class Placement:
    """One parameter.

    Attributes:
        cut: ranks that hold the whole together, each its part along ``axis``; of one rank: nothing is cut.
        sharding: ranks with the same cut that share its optimizer state, each a flat range of it.
        replicas: ranks with the same cut and the same range; their gradients are summed.
        reduce: sharding x replicas: over these the sum of whole gradients is that of all rows.
        together: ranks that hold the whole together where each has a range of its cut only: cut x sharding.
        counts: whether this rank's squares of its range enter the global norm; of each element one rank's do.
        flat_of: the shape of the cut where the parameter itself is only this rank's flat range of it.
    """

    cut: Comm
    sharding: Comm
    replicas: Comm
    reduce: Comm
    together: tuple[int, ...]
    counts: bool
    axis: int = 0
    flat_of: tuple[int, ...] | None = None

    def range_of(self, shape: Sequence[int]) -> tuple[int, int]:
        """This rank's range of the flattened cut of ``shape``: equal parts, the last ones may be shorter or empty."""
        number = prod(shape)
        size = -(-number // self.sharding.size)
        return min(self.sharding.index * size, number), min((self.sharding.index + 1) * size, number)

    def shard_spec(self, name: str, shape: Sequence[int]) -> ShardSpec:
        """What this rank holds of the parameter, whose ``shape`` is as it is here."""
        cut = self.flat_of or tuple(shape)
        whole = list(cut)
        if self.cut.size > 1:
            whole[self.axis] *= self.cut.size
        flat = self.range_of(cut) if self.flat_of is not None else None
        return ShardSpec(tuple(whole), self.axis, self.cut.index, self.cut.size, flat, name)

    def update_range(self, shape: Sequence[int]) -> tuple[int, int] | None:
        """The range of the parameter as it is here that this rank updates; ``None``: all of it."""
        return None if self.sharding.size == 1 or self.flat_of is not None else self.range_of(shape)


class Placements:
    """The table of this rank; every rank fills it in the same order, because filling it creates process groups.

    Args:
        beside: group of a placement (``reduce``, ``sharding``, ``replicas``) -> for what its ranks have groups of their own
            whose collectives do not wait.

    Attributes:
        usual: of a parameter that the table does not name: whole on every rank.
    """

    def __init__(self, mesh: Mesh, world: World, beside: Mapping[str, Sequence[str]]) -> None:
        self.mesh, self.world = mesh, world
        self._named: dict[str, Placement] = {}
        self._purposes = beside
        self._async: dict[tuple[str, tuple[int, ...]], AsyncComm] = {}
        self.usual = self.along()

    def of(self, name: str) -> Placement:
        """The placement of a parameter."""
        return self._named.get(name, self.usual)

    def async_of(self, purpose: str, comm: Comm) -> AsyncComm:
        """The group with the ranks of ``comm`` whose collectives do not wait."""
        return AsyncComm(comm) if comm.size == 1 else self._async[purpose, comm.ranks]

    def _comm(self, name: str, groups: Sequence[Sequence[int]]) -> Comm:
        """The one of ``groups`` that this rank is in, with those beside it."""
        for purpose in self._purposes.get(name, ()):
            other = self.world.comm(groups, purpose)
            if other.size > 1 and (purpose, other.ranks) not in self._async:
                self._async[purpose, other.ranks] = AsyncComm(other)
        return self.world.comm(groups)

    def put(self, names: Iterable[str], placement: Placement) -> None:
        """Say where parameters are."""
        self._named.update(dict.fromkeys(names, placement))

    def along(
        self, *, cut: Sequence[str] = (), axis: int = 0, summed: Sequence[str] = (), shared: bool = True
    ) -> Placement:
        """A placement by axes of the mesh.

        Args:
            cut: axes among whose ranks the parameter is cut along ``axis``, joined in the order of ranks.
            summed: axes whose ranks see parts of the gradient, beside those that see other rows or positions.
            shared: whether the ``sharding`` ranks share its optimizer state.
        """
        sums = {*BATCH, "context", *summed} - set(cut)
        shards = {"sharding"} & sums if shared else set[str]()
        same = set(AXES) - set(cut) - shards - set(_ELSEWHERE)
        mesh, comm = self.mesh, self.world.comm
        replicas, together = (
            next(group for group in mesh.groups(*axes) if self.world.rank in group) for axes in (same, {*cut, *shards})
        )
        return Placement(
            cut=comm(mesh.groups(*cut)),
            sharding=self._comm("sharding", mesh.groups(*shards)),
            replicas=self._comm("replicas", mesh.groups(*(sums - shards))),
            reduce=self._comm("reduce", mesh.groups(*sums)),
            together=tuple(together),
            counts=replicas[0] == self.world.rank,
            axis=axis,
        )

    def experts(self) -> Placement:
        """The placement of stacked experts: cut among the ranks that hold all of them together, along the first axis."""
        mesh, comm = self.mesh, self.world.comm
        replicas, cuts = mesh.expert_keepers("context"), mesh.expert_groups("tensor")
        sharing = self._comm("sharding", mesh.expert_shards())
        together = {rank for group in cuts if {*group} & {*sharing.ranks} for rank in group}
        return Placement(
            cut=comm(cuts),
            sharding=sharing,
            replicas=self._comm("replicas", replicas),
            reduce=self._comm("reduce", mesh.expert_replicas("context")),
            together=tuple(sorted(together)),
            counts=any(group[0] == self.world.rank for group in replicas),
        )
