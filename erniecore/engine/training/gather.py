"""Whole tensors from what each rank holds, and back: which rank writes which tensors of a checkpoint, and bringing them
there. What the parts are, the parallel strategy says; how files are written is the checkpoint package's matter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from erniecore.checkpoint.parts import PartWriter
from erniecore.checkpoint.shares import Key, Shares, Spec, divide
from erniecore.checkpoint.tensors import LONG_NAMES, PLAIN
from erniecore.engine.arrays import Array, dtype_name, share_memory, to_numpy, to_tensor
from erniecore.types import Piece, Ranks

if TYPE_CHECKING:
    from erniecore.types.model import Tensor

#: Paddle's dtype names -> safetensors'
SHORT_NAMES = {long: short for short, long in LONG_NAMES.items()}
#: bytes that each owner gets at a time, and that may wait to be written
_AHEAD = 64 << 20


class Held(NamedTuple):
    """A tensor here (or a numpy array), and which part of the whole it is."""

    tensor: Any
    piece: Piece

    @property
    def spec(self) -> Spec:
        """Of the whole."""
        if isinstance(self.tensor, np.ndarray):
            return PLAIN[self.tensor.dtype.name], self.tensor.shape
        return SHORT_NAMES[dtype_name(self.tensor)], tuple(self.piece.shape)


Groups = Mapping[str, Mapping[str, Held]]


def agree(ranks: Ranks, groups: Groups) -> Shares:
    """Who writes what: the same answer on every rank, of all tensors that any of them holds. All ranks together.

    Ranks that hold the same names as a lower one say only that: the list is told once.
    """
    own = {group: {name: held.spec for name, held in members.items()} for group, members in groups.items()}
    if ranks.size == 1:
        return divide(own, {})
    marks = ranks.exchange(hashlib.sha256(json.dumps(own).encode()).hexdigest())
    lists = ranks.exchange(own if marks.index(marks[ranks.rank]) == ranks.rank else None)
    specs: dict[str, dict[str, Spec]] = {}
    holders: dict[Key, list[int]] = {}
    for rank, mark in enumerate(marks):
        for group, members in lists[marks.index(mark)].items():
            for name, (dtype, shape) in members.items():
                specs.setdefault(group, {}).setdefault(name, (dtype, tuple(shape)))
                holders.setdefault((group, name), []).append(rank)
            specs.setdefault(group, {})
    return divide(specs, holders)


def bring(ranks: Ranks, held: Held | None, owner: int) -> Array | None:
    """The whole tensor on the host of rank ``owner``, a copy; None on the others. Ranks that ``owner`` needs for it talk to
    each other, in the same order of tensors on all of them."""
    if held is None:
        return None
    if held.piece.whole:
        if owner != ranks.rank:
            return None
        return held.tensor.copy() if isinstance(held.tensor, np.ndarray) else to_numpy(held.tensor)
    if owner not in ranks.partners(held.piece):
        return None
    array = ranks.whole(held.tensor, held.piece)
    return array if owner == ranks.rank else None


def feed(ranks: Ranks, groups: Groups, shares: Shares, writer: PartWriter, *, patient: bool) -> None:
    """Give every owner's writer its tensors.

    Args:
        patient: the writers may be slower than this, so ranks talk between rounds, and stop when one of them has failed.
    """
    for keys in shares.rounds(_AHEAD):
        if patient and any(ranks.exchange(writer.error is not None)):
            return
        for group, name in keys:
            array = bring(ranks, groups.get(group, {}).get(name), shares.owners[group, name])
            if array is not None:
                writer.put(array)


class WholeModel:
    """A model's whole weights, for writing; it computes nothing."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def state_dict(self) -> Mapping[str, Tensor]:
        """Structured name -> tensor."""
        return self._tensors


def whole_model(ranks: Ranks, model: Any) -> Any:
    """``model`` itself if every rank has it whole, else its whole weights, on rank 0 alone; called by all ranks."""
    members = held_of(ranks, model)
    found = ranks.exchange([all(held.piece.whole for held in members.values()), list(members)])
    if all(rank == [True, found[0][1]] for rank in found):
        return model
    return WholeModel({name: to_tensor(array, dtype) for name, array, dtype in to_main(ranks, members)})


def held_of(ranks: Ranks, model: Any) -> dict[str, Held]:
    """What this rank has of each tensor of ``model``."""
    return {name: Held(t, ranks.piece(name, t.shape)) for name, t in model.state_dict().items()}


def to_main(ranks: Ranks, members: Mapping[str, Held]) -> Iterator[tuple[str, Array, str]]:
    """(name, whole array, Paddle's dtype) of all ranks' tensors, on rank 0, one after the other; nothing on the others,
    which must go through it too."""
    shares = agree(ranks, {"model": members})
    main = set(ranks.exchange(list(members) if ranks.rank == 0 else [])[0])
    for name, (dtype, shape) in shares.specs["model"].items():
        owner = 0 if name in main else shares.owners["model", name]
        array = bring(ranks, members.get(name), owner)
        if owner:
            array = ranks.send(array, LONG_NAMES[dtype], shape, owner)
        if ranks.rank == 0:
            assert array is not None
            yield name, array, LONG_NAMES[dtype]


@contextmanager
def made_whole(ranks: Ranks, model: Any, rebuilt: Callable[[], Any]) -> Iterator[Any]:
    """A model with its whole weights on rank 0, to be written, not to be computed with: ``model`` itself within the block,
    or, where it lacks weights that other ranks have, one that ``rebuilt`` makes. All ranks enter together."""
    members = held_of(ranks, model)
    lacks = ranks.exchange(len(agree(ranks, {"model": members}).specs["model"]) > len(members))[0]
    target = rebuilt() if lacks and ranks.rank == 0 else model
    parts: list[tuple[Tensor, Tensor]] = []
    own = target.state_dict()
    for name, array, dtype in to_main(ranks, members):
        if lacks or not ranks.piece(name, own[name].shape).whole:
            parts.append((own[name], own[name].detach().clone()))
            share_memory(to_tensor(array, dtype), own[name])
    try:
        yield target
    finally:
        for tensor, part in parts:
            share_memory(part, tensor)


@dataclass(frozen=True)
class _Entry:
    shape: tuple[int, ...]


class LocalArrays(Mapping[str, Array]):
    """Whole arrays of a checkpoint as this rank's parts of them; each is read when it is asked for, and of those only
    what is needed."""

    def __init__(self, arrays: Mapping[str, Array], members: Mapping[str, Held]) -> None:
        self._arrays, self._members = arrays, members
        #: shapes without reading
        self.entries = {name: _Entry(tuple(held.tensor.shape)) for name, held in members.items()}

    def __getitem__(self, name: str) -> Array:
        return self._members[name].piece.take(self._arrays[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)
