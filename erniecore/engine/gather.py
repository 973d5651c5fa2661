"""Whole tensors from what each rank holds, and back: rank 0 writes files of whole tensors, one at a time, while the others
give it their parts of whichever it asks for. What the parts are, the parallel strategy says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from erniecore.checkpoint.tensors import LONG_NAMES
from erniecore.checkpoint.tensors import Tensor as StoredTensor
from erniecore.engine.arrays import Array, dtype_name, to_numpy, to_tensor
from erniecore.errors import CheckpointError
from erniecore.types import Piece, Ranks

if TYPE_CHECKING:
    from erniecore.types.model import Tensor

#: Paddle's dtype names -> safetensors'
SHORT_NAMES = {long: short for short, long in LONG_NAMES.items()}
#: seconds after which rank 0 lets the others know that it is still writing
_SIGN_OF_LIFE = 1.0
#: bytes of whole tensors that rank 0 fetches together
_AHEAD = 64 << 20


class Held(NamedTuple):
    """A tensor here, and which part of the whole it is."""

    tensor: Tensor
    piece: Piece


#: group -> name -> whole tensor
Stored = dict[str, dict[str, StoredTensor]]
Groups = Mapping[str, Mapping[str, Held]]


class Gathering:
    """One writing of ``groups`` (group -> name -> what this rank holds); all ranks make it at the same time."""

    def __init__(self, ranks: Ranks, groups: Groups) -> None:
        self.ranks, self.groups = ranks, groups
        self._spoke = time.monotonic()
        self._parted = [(g, n) for g, members in groups.items() for n, held in members.items() if not held.piece.whole]
        self._ahead: dict[tuple[str, str], Array] = {}

    def stored(self) -> Stored:
        """For rank 0: whole tensors, fetched when their data is wanted, so that one copy exists at a time."""
        return {
            group: {name: self._stored(group, name, held) for name, held in members.items()}
            for group, members in self.groups.items()
        }

    def copied(self) -> Stored:
        """Whole tensors as they are now, for rank 0 to write later; nothing on the others."""
        found: Stored = {}
        for group, members in self.groups.items():
            for name, held in members.items():
                array = None if held.piece.whole else self.ranks.whole(held.tensor, held.piece)
                if self.ranks.rank == 0:
                    array = to_numpy(held.tensor) if array is None else array
                    found.setdefault(group, {})[name] = replace(self._stored(group, name, held), load=_given(array))
        return found

    def write(self, write: Callable[[Stored], Path]) -> Path:
        """Rank 0 calls ``write``; the others serve it until it is done. The path, on every rank.

        Raises:
            CheckpointError: rank 0's error, on every rank.
        """
        if self.ranks.size == 1:
            return write(self.stored())
        return self._lead(write) if self.ranks.rank == 0 else self._follow()

    def _lead(self, write: Callable[[Stored], Path]) -> Path:
        try:
            path = write(self.stored())
        except CheckpointError as error:
            self._say({"failed": error.fields()})
            raise
        self._say({"done": str(path)})
        return path

    def _follow(self) -> Path:
        while True:
            said = self._say(None)
            if "done" in said:
                return Path(said["done"])
            if "failed" in said:
                fields = dict(said["failed"])
                raise CheckpointError(fields.pop("message"), **fields)
            for number in range(*said.get("want", (0, 0))):
                self._whole(self._parted[number])

    def _say(self, word: dict[str, Any] | None) -> dict[str, Any]:
        self._spoke = time.monotonic()
        found: dict[str, Any] = self.ranks.exchange(word)[0]
        return found

    def _whole(self, key: tuple[str, str]) -> Array:
        held = self.groups[key[0]][key[1]]
        return self.ranks.whole(held.tensor, held.piece)

    def _fetched(self, key: tuple[str, str]) -> Array:
        """A tensor that is not whole here, with its neighbours: talking about each takes longer than sending it."""
        if key not in self._ahead:
            start = stop = self._parted.index(key)
            size = 0
            while stop < len(self._parted) and (stop == start or size + self._size(stop) <= _AHEAD):
                size += self._size(stop)
                stop += 1
            self._say({"want": [start, stop]})
            self._ahead = {k: self._whole(k) for k in self._parted[start:stop]}
        return self._ahead.pop(key)

    def _size(self, number: int) -> int:
        group, name = self._parted[number]
        return 4 * prod(self.groups[group][name].piece.shape)

    def _stored(self, group: str, name: str, held: Held) -> StoredTensor:
        def load() -> Array:
            if not held.piece.whole:
                return self._fetched((group, name))
            if self.ranks.size > 1 and time.monotonic() - self._spoke > _SIGN_OF_LIFE:
                self._say({})
            return to_numpy(held.tensor)

        return StoredTensor(SHORT_NAMES[dtype_name(held.tensor)], held.piece.shape, load)


def _given(array: Array) -> Callable[[], Array]:
    return lambda: array


class WholeModel:
    """A model's whole weights, for writing; it computes nothing."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def state_dict(self) -> Mapping[str, Tensor]:
        """Structured name -> tensor."""
        return self._tensors


def whole_model(ranks: Ranks, model: Any) -> Any:
    """``model`` itself if every rank has it whole, else its whole weights, on rank 0 alone; called by all ranks."""
    members = {name: Held(t, ranks.piece(name, t.shape)) for name, t in model.state_dict().items()}
    if all(held.piece.whole for held in members.values()):
        return model
    tensors = {}
    for name, held in members.items():
        array = ranks.whole(held.tensor, held.piece)
        if ranks.rank == 0:
            tensors[name] = to_tensor(array, dtype_name(held.tensor))
    return WholeModel(tensors)


@contextmanager
def made_whole(ranks: Ranks, model: Any) -> Iterator[None]:
    """Within the block ``model`` has its whole weights on rank 0, to be written, not to be computed with; all ranks enter
    together."""
    parts: list[tuple[Tensor, Tensor]] = []
    for name, tensor in model.state_dict().items():
        piece = ranks.piece(name, tensor.shape)
        if not piece.whole:
            array = ranks.whole(tensor, piece)
            if ranks.rank == 0:
                parts.append((tensor, tensor.detach().clone()))
                _share(to_tensor(array, dtype_name(tensor)), tensor)
    try:
        yield
    finally:
        for tensor, part in parts:
            _share(part, tensor)


def _share(source: Tensor, target: Tensor) -> None:
    """Give ``target`` the data and the shape of ``source``."""
    target.get_tensor()._share_data_with(source.get_tensor())


def whole_shapes(members: Mapping[str, Held]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Name -> (shape of the whole, safetensors dtype): what a checkpoint must hold."""
    return {name: (held.piece.shape, SHORT_NAMES[dtype_name(held.tensor)]) for name, held in members.items()}


@dataclass(frozen=True)
class _Entry:
    shape: tuple[int, ...]


class LocalArrays(Mapping[str, Array]):
    """Whole arrays of a checkpoint as this rank's parts of them; each is read when it is asked for."""

    def __init__(self, arrays: Mapping[str, Array], members: Mapping[str, Held]) -> None:
        self._arrays, self._members = arrays, members
        #: shapes without reading
        self.entries = {name: _Entry(tuple(held.tensor.shape)) for name, held in members.items()}

    def __getitem__(self, name: str) -> Array:
        return self._members[name].piece.take(self._arrays[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)
