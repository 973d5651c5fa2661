"""Full tensors from the local shards of all ranks, and back: which rank writes which tensors of a checkpoint, and gathering
them there. The parallel strategy says how tensors are sharded; how files are written is the checkpoint package's matter.
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


class LocalShard(NamedTuple):
    """A tensor of this rank (or a numpy array), and which shard of the full tensor it is."""

    tensor: Any
    piece: Piece

    @property
    def spec(self) -> Spec:
        """Of the full tensor."""
        if isinstance(self.tensor, np.ndarray):
            return PLAIN[self.tensor.dtype.name], self.tensor.shape
        return SHORT_NAMES[dtype_name(self.tensor)], tuple(self.piece.shape)


Groups = Mapping[str, Mapping[str, LocalShard]]


def assign(ranks: Ranks, groups: Groups) -> Shares:
    """Which rank writes which tensor: the same answer on every rank, of all tensors that any of them has. All ranks together.

    Ranks that hold the same names as a lower one say only that: the list is told once.
    """
    own = {group: {name: shard.spec for name, shard in members.items()} for group, members in groups.items()}
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


def gather_tensor(ranks: Ranks, shard: LocalShard | None, owner: int) -> Array | None:
    """The full tensor on the host of rank ``owner``, a copy; None on the others. Every rank that has a shard of it calls
    this, in the same order of tensors."""
    if shard is None:
        return None
    if shard.piece.whole:
        if owner != ranks.rank:
            return None
        return shard.tensor.copy() if isinstance(shard.tensor, np.ndarray) else to_numpy(shard.tensor)
    if owner not in ranks.partners(shard.piece):
        return None
    array = ranks.whole(shard.tensor, shard.piece)
    return array if owner == ranks.rank else None


def write_shards(ranks: Ranks, groups: Groups, shares: Shares, writer: PartWriter, *, patient: bool) -> None:
    """Gather every tensor on its owner and hand it to the owner's writer.

    Args:
        patient: the writers may be slower than this, so ranks talk between rounds, and stop when one of them has failed.
    """
    for keys in shares.rounds(_AHEAD):
        if patient and any(ranks.exchange(writer.error is not None)):
            return
        for group, name in keys:
            array = gather_tensor(ranks, groups.get(group, {}).get(name), shares.owners[group, name])
            if array is not None:
                writer.put(array)


class FullWeights:
    """The full weights of a model, for writing; it computes nothing."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def state_dict(self) -> Mapping[str, Tensor]:
        """Structured name -> tensor."""
        return self._tensors


def full_weights(ranks: Ranks, model: Any) -> Any:
    """``model`` itself if no weight of it is sharded, else its full weights, on rank 0 alone; called by all ranks."""
    members = local_shards(ranks, model)
    found = ranks.exchange([all(shard.piece.whole for shard in members.values()), list(members)])
    if all(rank == [True, found[0][1]] for rank in found):
        return model
    return FullWeights({name: to_tensor(array, dtype) for name, array, dtype in gather_to_main(ranks, members)})


def local_shards(ranks: Ranks, model: Any) -> dict[str, LocalShard]:
    """The shard of each tensor of ``model`` on this rank."""
    return {name: LocalShard(t, ranks.piece(name, t.shape)) for name, t in model.state_dict().items()}


def gather_to_main(ranks: Ranks, members: Mapping[str, LocalShard]) -> Iterator[tuple[str, Array, str]]:
    """(name, full array, Paddle's dtype) of all ranks' tensors, on rank 0, one after the other; nothing on the others,
    which must go through it too."""
    shares = assign(ranks, {"model": members})
    main = set(ranks.exchange(list(members) if ranks.rank == 0 else [])[0])
    for name, (dtype, shape) in shares.specs["model"].items():
        owner = 0 if name in main else shares.owners["model", name]
        array = gather_tensor(ranks, members.get(name), owner)
        if owner:
            array = ranks.send(array, LONG_NAMES[dtype], shape, owner)
        if ranks.rank == 0:
            assert array is not None
            yield name, array, LONG_NAMES[dtype]


@contextmanager
def with_full_weights(ranks: Ranks, model: Any, rebuilt: Callable[[], Any]) -> Iterator[Any]:
    """A model with its full weights on rank 0, to be written, not to be computed with: ``model`` itself within the block,
    or, where it lacks weights that other ranks have, one that ``rebuilt`` makes. All ranks enter together."""
    members = local_shards(ranks, model)
    lacks = ranks.exchange(len(assign(ranks, {"model": members}).specs["model"]) > len(members))[0]
    target = rebuilt() if lacks and ranks.rank == 0 else model
    parts: list[tuple[Tensor, Tensor]] = []
    own = target.state_dict()
    for name, array, dtype in gather_to_main(ranks, members):
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
    """The arrays of a checkpoint as this rank's shards of them; each is read when it is asked for, and of it only what is
    needed."""

    def __init__(self, arrays: Mapping[str, Array], members: Mapping[str, LocalShard]) -> None:
        self._arrays, self._members = arrays, members
        #: shapes without reading
        self.entries = {name: _Entry(tuple(shard.tensor.shape)) for name, shard in members.items()}

    def __getitem__(self, name: str) -> Array:
        return self._members[name].piece.take(self._arrays[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)
