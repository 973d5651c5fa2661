"""Which samples share a row: pure functions from lengths to packs. Knows nothing of tokens.

Works through the lengths a buffer at a time, so that millions of samples cost two small integers each.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from erniecore_sampler.order import Array

#: samples that sequential packing looks at together
_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Packs:
    """Rows of sample indices without an object per row.

    Attributes:
        members: all indices, row after row [N]. ends: where each row ends in it [R]; ``None``: one sample per row.
    """

    members: Array
    ends: Array | None = None

    def __len__(self) -> int:
        return len(self.members) if self.ends is None else len(self.ends)

    def __getitem__(self, index: slice) -> list[list[int]]:
        """Some rows, each a list."""
        wanted = range(*index.indices(len(self)))
        return [self.members[self._start(r) : self._start(r + 1)].tolist() for r in wanted]

    def _start(self, row: int) -> int:
        return row if self.ends is None else int(self.ends[row - 1]) if row else 0


def pack(lengths: Array, capacity: int, kind: str, buffer: int = 500) -> Packs:
    """All rows of ``kind``; members are indices into ``lengths``.

    Args:
        kind: ``sequential``: rows are filled in order, and a sample that does not fit opens the next row. ``greedy``: best fit
            in order of arrival, within a buffer of samples; the emptiest row of a buffer joins the next one. Not longest
            first, which fills a little better but puts samples of one length, and so often of one kind, into the same row
            and neighboring steps.

    Raises:
        ValueError: a length above ``capacity``.
    """
    _check(lengths, capacity)
    found = _sequential(lengths, capacity) if kind == "sequential" else _greedy(lengths, capacity, buffer)
    members = np.empty(len(lengths), np.int32 if len(lengths) < 2**31 else np.int64)
    ends: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    done = 0
    for rows in found:
        sizes = np.cumsum([len(row) for row in rows], dtype=np.int64) + done
        members[done : int(sizes[-1])] = [i for row in rows for i in row]
        ends.append(sizes)
        done = int(sizes[-1])
    return Packs(members, np.concatenate(ends))


def _sequential(lengths: Array, capacity: int) -> Iterator[list[list[int]]]:
    row: list[int] = []
    room = capacity
    for start in range(0, len(lengths), _AT_ONCE):
        rows = []
        for i, length in enumerate(lengths[start : start + _AT_ONCE].tolist(), start):
            if length > room:
                rows.append(row)
                row, room = [], capacity
            row.append(i)
            room -= length
        if rows:
            yield rows
    if row:
        yield [row]


def _greedy(lengths: Array, capacity: int, buffer: int) -> Iterator[list[list[int]]]:
    """Finished rows, a buffer at a time."""
    carried: list[tuple[int, int]] = []  # (index, length)
    for start in range(0, len(lengths), buffer):
        arrived = enumerate(lengths[start : start + buffer].tolist(), start)
        filled = _best_fit([*carried, *arrived], capacity)
        carried = []
        if start + buffer < len(lengths) and len(filled) > 1:
            emptiest = min(range(len(filled)), key=lambda p: (sum(n for _, n in filled[p]), p))
            carried = filled.pop(emptiest)
        yield [[i for i, _ in row] for row in filled]


def _best_fit(samples: Sequence[tuple[int, int]], capacity: int) -> list[list[tuple[int, int]]]:
    """Each sample into the fullest row that still holds it, of equally full ones the oldest; rows by their first sample."""
    packs: list[list[tuple[int, int]]] = []
    many = len(samples) + 1
    rooms: list[int] = []  # room left * many + pack, sorted
    for sample in samples:
        length = sample[1]
        at = bisect_left(rooms, length * many)
        if at < len(rooms):
            room, pack = divmod(rooms.pop(at), many)
        else:
            room, pack = capacity, len(packs)
            packs.append([])
        packs[pack].append(sample)
        insort(rooms, (room - length) * many + pack)
    return sorted((sorted(p) for p in packs), key=lambda p: p[0])


def _check(lengths: Array, capacity: int) -> None:
    longest: Any = int(np.argmax(lengths)) if len(lengths) else None
    if longest is not None and lengths[longest] > capacity:
        first = int(np.argmax(lengths > capacity))
        raise ValueError(f"sample {first} has {int(lengths[first])} tokens, a row holds {capacity}")
