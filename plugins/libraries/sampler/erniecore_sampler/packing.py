"""Which samples share a row: pure functions from lengths, and a second size such as patches, to packs. Knows nothing of
tokens.

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


def pack(
    lengths: Array,
    capacity: int,
    kind: str,
    buffer: int = 500,
    *,
    patches: Array | None = None,
    max_patches: int = 0,
) -> Packs:
    """All rows of ``kind``; members are indices into ``lengths``.

    Args:
        kind: ``sequential``: rows are filled in order, and a sample that does not fit opens the next row. ``greedy``: best fit
            in order of arrival, within a buffer of samples; the emptiest row of a buffer joins the next one. Not longest
            first, which fills a little better but puts samples of one length, and so often of one kind, into the same row
            and neighboring steps.
        patches: a second size [N], of which a row holds ``max_patches``; 0: any.

    Raises:
        ValueError: a length above ``capacity``, or more patches than ``max_patches``.
    """
    _check(lengths, capacity, "tokens")
    bounded = patches is not None and max_patches > 0
    beside = patches if patches is not None and bounded else np.zeros(len(lengths), np.int8)
    most = max_patches if bounded else 0
    _check(beside, most, "patches")
    sizes_of = _Sizes(lengths, beside)
    found = _sequential(sizes_of, capacity, most) if kind == "sequential" else _greedy(sizes_of, capacity, most, buffer)
    members = np.empty(len(lengths), np.int32 if len(lengths) < 2**31 else np.int64)
    ends: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    done = 0
    for rows in found:
        sizes = np.cumsum([len(row) for row in rows], dtype=np.int64) + done
        members[done : int(sizes[-1])] = [i for row in rows for i in row]
        ends.append(sizes)
        done = int(sizes[-1])
    return Packs(members, np.concatenate(ends))


@dataclass(frozen=True)
class _Sizes:
    lengths: Array
    patches: Array

    def of(self, start: int, count: int) -> Iterator[tuple[int, int, int]]:
        """(index, length, patches) of some samples."""
        part = slice(start, start + count)
        index = range(start, start + len(self.lengths[part]))
        return zip(index, self.lengths[part].tolist(), self.patches[part].tolist(), strict=True)


def _sequential(sizes: _Sizes, capacity: int, most: int) -> Iterator[list[list[int]]]:
    row: list[int] = []
    room, left = capacity, most
    for start in range(0, len(sizes.lengths), _AT_ONCE):
        rows = []
        for i, length, patches in sizes.of(start, _AT_ONCE):
            if length > room or patches > left:
                rows.append(row)
                row, room, left = [], capacity, most
            row.append(i)
            room, left = room - length, left - patches
        if rows:
            yield rows
    if row:
        yield [row]


def _greedy(sizes: _Sizes, capacity: int, most: int, buffer: int) -> Iterator[list[list[int]]]:
    """Finished rows, a buffer at a time."""
    carried: list[tuple[int, int, int]] = []  # (index, length, patches)
    for start in range(0, len(sizes.lengths), buffer):
        filled = _best_fit([*carried, *sizes.of(start, buffer)], capacity, most)
        carried = []
        if start + buffer < len(sizes.lengths) and len(filled) > 1:
            emptiest = min(range(len(filled)), key=lambda p: (sum(n for _, n, _ in filled[p]), p))
            carried = filled.pop(emptiest)
        yield [[i for i, _, _ in row] for row in filled]


def _best_fit(samples: Sequence[tuple[int, int, int]], capacity: int, most: int) -> list[list[tuple[int, int, int]]]:
    """Each sample into the fullest row that still holds it, of equally full ones the oldest; rows by their first sample."""
    packs: list[list[tuple[int, int, int]]] = []
    left: list[int] = []  # patches of each row
    many = len(samples) + 1
    rooms: list[int] = []  # room left * many + pack, sorted
    for sample in samples:
        _, length, patches = sample
        at = bisect_left(rooms, length * many)
        while at < len(rooms) and left[rooms[at] % many] < patches:
            at += 1
        if at < len(rooms):
            room, pack = divmod(rooms.pop(at), many)
        else:
            room, pack = capacity, len(packs)
            packs.append([])
            left.append(most)
        packs[pack].append(sample)
        left[pack] -= patches
        insort(rooms, (room - length) * many + pack)
    return sorted((sorted(p) for p in packs), key=lambda p: p[0])


def _check(sizes: Array, capacity: int, what: str) -> None:
    longest: Any = int(np.argmax(sizes)) if len(sizes) else None
    if longest is not None and sizes[longest] > capacity:
        first = int(np.argmax(sizes > capacity))
        raise ValueError(f"sample {first} has {int(sizes[first])} {what}, a row holds {capacity}")
