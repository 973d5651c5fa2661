"""Gathers full tensors from the local shards of all ranks for checkpoints and exports. The parallel strategy decides how
tensors are sharded; the checkpoint package writes the files.
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
from erniecore.checkpoint.tensors import LONG_NAMES, PLAIN
from erniecore.checkpoint.write_plan import Key, Spec, WritePlan, divide
from erniecore.engine.arrays import Array, dtype_name, share_memory, to_numpy, to_tensor
from erniecore.types.process_group import ProcessGroup, ShardSpec

if TYPE_CHECKING:
    from erniecore.types.model import Tensor

#: Paddle's dtype names -> safetensors'
SHORT_NAMES = {long: short for short, long in LONG_NAMES.items()}
#: bytes that each owner gets at a time, and that may wait to be written
_AHEAD = 64 << 20


class LocalShard(NamedTuple):
    """A tensor (or numpy array) of this rank, and which shard of the full tensor it is."""

    tensor: Any
    spec: ShardSpec

    @property
    def full_spec(self) -> Spec:
        """Dtype and shape of the full tensor."""
        if isinstance(self.tensor, np.ndarray):
            return PLAIN[self.tensor.dtype.name], self.tensor.shape
        return SHORT_NAMES[dtype_name(self.tensor)], tuple(self.spec.shape)


Groups = Mapping[str, Mapping[str, LocalShard]]


def assign(ranks: ProcessGroup, groups: Groups) -> WritePlan:
    """The write plan for all tensors of all ranks; the same on every rank. Called by all ranks together.

    Ranks with the same tensor names as a lower rank send only a hash, so each list is sent once.
    """
    own = {group: {name: shard.full_spec for name, shard in members.items()} for group, members in groups.items()}
    if ranks.size == 1:
        return divide(own, {})
    digests = ranks.all_gather_object(hashlib.sha256(json.dumps(own).encode()).hexdigest())
    lists = ranks.all_gather_object(own if digests.index(digests[ranks.rank]) == ranks.rank else None)
    specs: dict[str, dict[str, Spec]] = {}
    holders: dict[Key, list[int]] = {}
    for rank, digest in enumerate(digests):
        for group, members in lists[digests.index(digest)].items():
            for name, (dtype, shape) in members.items():
                specs.setdefault(group, {}).setdefault(name, (dtype, tuple(shape)))
                holders.setdefault((group, name), []).append(rank)
            specs.setdefault(group, {})
    return divide(specs, holders)


def gather_tensor(ranks: ProcessGroup, shard: LocalShard | None, owner: int) -> Array | None:
    """The full tensor on the host of rank ``owner``, a copy; None on the others. Every rank that has a shard of it calls
    this, in the same order of tensors."""
    if shard is None:
        return None
    if shard.spec.is_full:
        if owner != ranks.rank:
            return None
        return shard.tensor.copy() if isinstance(shard.tensor, np.ndarray) else to_numpy(shard.tensor)
    if owner not in ranks.shard_ranks(shard.spec):
        return None
    array = ranks.gather_to_host(shard.tensor, shard.spec)
    return array if owner == ranks.rank else None


def write_shards(ranks: ProcessGroup, groups: Groups, plan: WritePlan, writer: PartWriter, *, patient: bool) -> None:
    """Gather every tensor on its owner and hand it to the owner's writer.

    Args:
        patient: writers may fall behind, so the ranks synchronize between rounds and stop if one of them has failed.
    """
    for keys in plan.rounds(_AHEAD):
        if patient and any(ranks.all_gather_object(writer.error is not None)):
            return
        for group, name in keys:
            array = gather_tensor(ranks, groups.get(group, {}).get(name), plan.owners[group, name])
            if array is not None:
                writer.put(array)


class FullWeights:
    """The full weights of a model, for writing only."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def state_dict(self) -> Mapping[str, Tensor]:
        """Structured name -> tensor."""
        return self._tensors


def full_weights(ranks: ProcessGroup, model: Any) -> Any:
    """``model`` itself if none of its weights is sharded, else its full weights on rank 0; called by all ranks."""
    members = local_shards(ranks, model)
    found = ranks.all_gather_object([all(shard.spec.is_full for shard in members.values()), list(members)])
    if all(rank == [True, found[0][1]] for rank in found):
        return model
    return FullWeights({name: to_tensor(array, dtype) for name, array, dtype in gather_to_main(ranks, members)})


def local_shards(ranks: ProcessGroup, model: Any) -> dict[str, LocalShard]:
    """The shard of each tensor of ``model`` on this rank."""
    return {name: LocalShard(t, ranks.shard_spec(name, t.shape)) for name, t in model.state_dict().items()}


def gather_to_main(ranks: ProcessGroup, members: Mapping[str, LocalShard]) -> Iterator[tuple[str, Array, str]]:
    """Yields (name, full array, Paddle dtype) of all tensors on rank 0. The other ranks yield nothing but must iterate too."""
    plan = assign(ranks, {"model": members})
    main = set(ranks.all_gather_object(list(members) if ranks.rank == 0 else [])[0])
    for name, (dtype, shape) in plan.specs["model"].items():
        owner = 0 if name in main else plan.owners["model", name]
        array = gather_tensor(ranks, members.get(name), owner)
        if owner:
            array = ranks.broadcast(array, LONG_NAMES[dtype], shape, owner)
        if ranks.rank == 0:
            assert array is not None
            yield name, array, LONG_NAMES[dtype]


@contextmanager
def with_full_weights(ranks: ProcessGroup, model: Any, rebuilt: Callable[[], Any]) -> Iterator[Any]:
    """A model with its full weights on rank 0, for writing, not for computing: ``model`` itself inside the block or, if it lacks
    weights that other ranks have, the model that ``rebuilt`` returns. All ranks enter together."""
    members = local_shards(ranks, model)
    lacks = ranks.all_gather_object(len(assign(ranks, {"model": members}).specs["model"]) > len(members))[0]
    target = rebuilt() if lacks and ranks.rank == 0 else model
    parts: list[tuple[Tensor, Tensor]] = []
    own = target.state_dict()
    for name, array, dtype in gather_to_main(ranks, members):
        if lacks or not ranks.shard_spec(name, own[name].shape).is_full:
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
    """This rank's shards of a checkpoint's arrays; each is read on access, and only the range that is needed."""

    def __init__(self, arrays: Mapping[str, Array], members: Mapping[str, LocalShard]) -> None:
        self._arrays, self._members = arrays, members
        #: shapes without reading
        self.entries = {name: _Entry(tuple(shard.tensor.shape)) for name, shard in members.items()}

    def __getitem__(self, name: str) -> Array:
        return self._members[name].spec.take(self._arrays[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)
