"""Which samples share a row: pure functions from lengths to packs. Knows nothing of tokens."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence


def sequential(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Fill rows in order; a sample that does not fit opens the next row.

    Returns indices into ``lengths``. Raises ``ValueError`` for a length above ``capacity``."""
    packs: list[list[int]] = []
    room = 0
    for i, length in enumerate(lengths):
        _check(i, length, capacity)
        if length > room or not packs:
            packs.append([])
            room = capacity
        packs[-1].append(i)
        room -= length
    return packs


def greedy(lengths: Sequence[int], capacity: int, buffer: int = 500) -> list[list[int]]:
    """Best fit in order of arrival, within a buffer of samples; the emptiest row of a buffer joins the next one.

    Not longest first, which fills a little better but puts samples of one length, and so often of one kind, into the
    same row and neighbouring steps. Raises ``ValueError`` for a length above ``capacity``.
    """
    packs: list[list[int]] = []
    carried: list[int] = []
    for start in range(0, len(lengths), max(buffer, 1)):
        stop = min(start + max(buffer, 1), len(lengths))
        filled = _best_fit([*carried, *range(start, stop)], lengths, capacity)
        carried = []
        if stop < len(lengths) and len(filled) > 1:
            emptiest = min(range(len(filled)), key=lambda p: (sum(lengths[i] for i in filled[p]), p))
            carried = filled.pop(emptiest)
        packs += filled
    return packs


def _best_fit(indices: Iterable[int], lengths: Sequence[int], capacity: int) -> list[list[int]]:
    packs: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (room left, pack), sorted
    for i in indices:
        _check(i, lengths[i], capacity)
        at = bisect_left(rooms, (lengths[i], -1))
        if at < len(rooms):
            room, pack = rooms.pop(at)
        else:
            room, pack = capacity, len(packs)
            packs.append([])
        packs[pack].append(i)
        insort(rooms, (room - lengths[i], pack))
    return sorted((sorted(p) for p in packs), key=lambda p: p[0])


def fill_rate(packs: Sequence[Sequence[int]], lengths: Sequence[int], capacity: int) -> float:
    """Share of the rows that holds tokens; 1.0 when there is no row."""
    return sum(lengths[i] for pack in packs for i in pack) / (len(packs) * capacity) if packs else 1.0


def _check(index: int, length: int, capacity: int) -> None:
    if length > capacity:
        raise ValueError(f"sample {index} has {length} tokens, a row holds {capacity}")
