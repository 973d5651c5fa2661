"""The device mesh: coordinates of ranks and their process groups, as pure functions of the parallel degrees.

Places of the grid are counted with the innermost axis fastest: tensor-parallel ranks are neighbors on one machine, pipeline
stages are furthest apart. Which rank is at which place may be chosen otherwise (``parallel.order``, ``parallel.ranks``); rank
numbers are those of the launcher, which fills machines with them in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

#: innermost first
AXES = ("tensor", "context", "sharding", "data", "pipeline")
#: axes whose ranks have different sequences
BATCH = ("sharding", "data")


@dataclass(frozen=True)
class Mesh:
    """A grid of ranks.

    Attributes:
        degrees: axis of ``AXES`` -> how many ranks along it.
        expert: ranks that share the experts, consecutive among those that see different rows.
        order: the axes as ranks are counted along them, from neighbors to those furthest apart.
        ranks: the rank at each place, counted in that order; empty: the same number.
    """

    degrees: Mapping[str, int]
    expert: int = 1
    order: tuple[str, ...] = AXES
    ranks: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Number of ranks in total."""
        return prod(self.degrees[axis] for axis in AXES)

    @property
    def data_size(self) -> int:
        """Number of ranks that see different rows."""
        return prod(self.degrees[axis] for axis in BATCH)

    @cached_property
    def _numbers(self) -> dict[int, int]:
        """Rank -> number of its place, where they differ."""
        return {rank: number for number, rank in enumerate(self.ranks)}

    def coordinates(self, rank: int) -> dict[str, int]:
        """Axis -> place of ``rank`` along it."""
        number, found = self._numbers.get(rank, rank), dict.fromkeys(AXES, 0)
        for axis in self.order:
            number, found[axis] = divmod(number, self.degrees[axis])
        return found

    def rank_at(self, coordinates: Mapping[str, int]) -> int:
        """The inverse of :meth:`coordinates`."""
        number = 0
        for axis in reversed(self.order):
            number = number * self.degrees[axis] + coordinates[axis]
        return self.ranks[number] if self.ranks else number

    def places(self) -> Iterator[tuple[int, dict[str, int]]]:
        """(rank, coordinates) of every place, the axes of ``AXES`` in order."""
        for found in product(*(range(self.degrees[axis]) for axis in reversed(AXES))):
            coordinates = dict(zip(reversed(AXES), found, strict=True))
            yield self.rank_at(coordinates), coordinates

    def data_rank(self, rank: int) -> int:
        """Which share of the rows ``rank`` sees."""
        place = self.coordinates(rank)
        return place["data"] * self.degrees["sharding"] + place["sharding"]

    def groups(self, *axes: str) -> list[list[int]]:
        """Groups of ranks that differ along ``axes`` only, each in the order of places; together all ranks."""
        return self.grouped(lambda rank, place: tuple(place[axis] for axis in AXES if axis not in axes))

    def ends(self) -> list[list[int]]:
        """The first and the last rank of every pipeline; the others alone."""
        lines = self.groups("pipeline")
        if self.degrees["pipeline"] < 3:
            return lines
        return [*([line[0], line[-1]] for line in lines), *([rank] for line in lines for rank in line[1:-1])]

    def expert_groups(self, *axes: str) -> list[list[int]]:
        """Ranks that hold all experts together; with those along ``axes``, which hold parts of them."""
        rest = self._rest(*axes)
        return self.grouped(lambda rank, place: (*rest(place), self.data_rank(rank) // self.expert))

    def expert_replicas(self, *axes: str) -> list[list[int]]:
        """Ranks that hold the same experts and see different rows, or along ``axes`` parts of the same rows."""
        rest = self._rest(*axes)
        return self.grouped(lambda rank, place: (*rest(place), self.data_rank(rank) % self.expert))

    def expert_shards(self) -> list[list[int]]:
        """Those of ``expert_replicas`` that share an optimizer's state."""
        rest = self._rest()
        return self.grouped(lambda rank, place: (*rest(place), place["data"], self.data_rank(rank) % self.expert))

    def expert_keepers(self, *axes: str) -> list[list[int]]:
        """Those of ``expert_replicas(*axes)`` that keep the same part of the state."""
        rest = self._rest(*axes)
        at = {rank: index for group in self.expert_shards() for index, rank in enumerate(group)}
        return self.grouped(lambda rank, place: (*rest(place), self.data_rank(rank) % self.expert, at[rank]))

    @staticmethod
    def _rest(*axes: str) -> Callable[[Mapping[str, int]], tuple[int, ...]]:
        others = [axis for axis in AXES if axis not in (*BATCH, *axes)]
        return lambda place: tuple(place[axis] for axis in others)

    def grouped(self, key: Callable[[int, dict[str, int]], tuple[int, ...]]) -> list[list[int]]:
        """Ranks with the same ``key(rank, coordinates)``, in the order of places."""
        found: dict[tuple[int, ...], list[int]] = {}
        for rank, place in self.places():
            found.setdefault(key(rank, place), []).append(rank)
        return list(found.values())


def problems(groups: Iterable[Iterable[int]], size: int, length: int) -> list[str]:
    """What is wrong with ``groups`` of ``size`` ranks: they must be disjoint, complete, and of ``length`` each."""
    seen: set[int] = set()
    found = []
    for group in groups:
        members = list(group)
        if len(members) != length:
            found.append(f"{members} has {len(members)} ranks, not {length}")
        found += [f"rank {rank} is in two groups" for rank in members if rank in seen]
        seen.update(members)
    found += [f"rank {rank} is in no group" for rank in sorted(set(range(size)) - seen)[:8]]
    return found + [f"there is no rank {rank}" for rank in sorted(seen - set(range(size)))[:8]]


def edges(line: list[int], direction: int, round_: bool) -> list[tuple[int, int]]:
    """(sender, receiver) between neighbors of a pipeline; with ``round_``, between its ends too."""
    pairs = list(zip(line, line[1:] + line[:1], strict=True))
    pairs = pairs if round_ else pairs[:-1]
    return pairs if direction > 0 else [(b, a) for a, b in pairs]
