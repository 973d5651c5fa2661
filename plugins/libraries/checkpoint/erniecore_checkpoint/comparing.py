"""Comparing the tensors of a file with those that a model needs. Names and shapes alone; nothing is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from erniecore_errors import nearest

#: problems that a message lists
_LISTED = 10


def compare_tensors(
    found: Mapping[str, tuple[tuple[int, ...], str]],
    expected: Mapping[str, tuple[tuple[int, ...], str]],
    owner: str,
) -> list[str]:
    """What differs between the tensors found and those expected, one line each; missing ones with the nearest name."""
    problems: list[str] = []
    spare = [name for name in found if name not in expected]
    for name, (shape, dtype) in expected.items():
        if name not in found:
            problems.append(f"{name} is missing" + hint(name, spare, problems))
        elif found[name][0] != shape:
            problems.append(f"{name} has shape {list(found[name][0])}, expected {list(shape)}")
        elif dtype and found[name][1] != dtype:
            problems.append(f"{name} has dtype {found[name][1]}, expected {dtype}")
    problems += [f"{name} is not in {owner}" for name in spare]
    return problems


def hint(name: str, others: Iterable[str], problems: list[str]) -> str:
    """`` (near: ...)`` with the most similar of ``others``; nothing once so many problems are known that none is shown.

    Similarity of thousands of names to thousands of others would take minutes.
    """
    near = nearest(name, others) if len(problems) < _LISTED else None
    return f" (near: {near})" if near else ""


def list_problems(problems: list[str], limit: int = _LISTED) -> str:
    """The first ``limit`` problems as one text, and how many more there are."""
    more = f"; and {len(problems) - limit} more" if len(problems) > limit else ""
    return "; ".join(problems[:limit]) + more
