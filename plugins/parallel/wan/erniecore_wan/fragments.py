"""Fragments of streaming DiLoCo: the trained parameters as flat vectors, some of them in each round.

A round exchanges one fragment; round ``r`` that of index ``r % num_fragments``. With one fragment every round exchanges
everything. No paddle.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod

import numpy as np

from erniecore_wan.arrays import AnyArray, Vector

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Fragment:
    """Parameters that one round exchanges, in order.

    Attributes:
        shapes: (name, shape of the full parameter).
    """

    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def size(self) -> int:
        return sum(prod(shape) for _, shape in self.shapes)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.shapes)

    def join(self, values: Mapping[str, AnyArray]) -> Vector:
        """One float32 [size] vector of the parameters ``values``."""
        if not self.shapes:
            return np.zeros(0, np.float32)
        return np.concatenate([np.asarray(values[name], np.float32).reshape(-1) for name, _ in self.shapes])

    def cut(self, vector: Vector) -> dict[str, Vector]:
        """The parameters, as views of ``vector``: float32 [size]."""
        found, start = {}, 0
        for name, shape in self.shapes:
            found[name] = vector[start : start + prod(shape)].reshape(shape)
            start += prod(shape)
        return found

    def ranges(self, names: Collection[str]) -> list[tuple[int, int]]:
        """(start, stop) in the vector of each parameter among ``names``."""
        found, start = [], 0
        for name, shape in self.shapes:
            if name in names:
                found.append((start, start + prod(shape)))
            start += prod(shape)
        return found


def selected(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """The names that fit one of the patterns, in order; all of them if there are no patterns."""
    return [name for name in names if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)]


def fragments_of(shapes: Shapes, count: int) -> tuple[Fragment, ...]:
    """The parameters in ``count`` fragments of about equal size.

    The largest parameters are assigned first, each to the fragment that is smallest so far. The same on every site.

    Raises:
        ValueError: there are fewer parameters than fragments.
    """
    if not 1 <= count <= max(len(shapes), 1):
        raise ValueError(f"{count} fragments need at least as many parameters; there are {len(shapes)}")
    members: list[list[tuple[str, tuple[int, ...]]]] = [[] for _ in range(count)]
    sizes = [0] * count
    for name in sorted(shapes, key=lambda name: (-prod(shapes[name]), name)):
        index = sizes.index(min(sizes))
        members[index].append((name, tuple(shapes[name])))
        sizes[index] += prod(shapes[name])
    return tuple(Fragment(tuple(sorted(own))) for own in members)


def digest_of(shapes: Shapes) -> str:
    """SHA-256 of names and shapes: sites whose payloads differ never exchange anything."""
    ordered = {name: list(shapes[name]) for name in sorted(shapes)}
    return hashlib.sha256(json.dumps(ordered).encode()).hexdigest()


def vector_digest(vector: Vector) -> str:
    """SHA-256 of the bits of a vector."""
    return hashlib.sha256(np.ascontiguousarray(vector, np.float32).tobytes()).hexdigest()
