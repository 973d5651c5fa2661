"""Gathers full tensors from the local shards of all ranks for checkpoints and exports. The parallel strategy decides how
tensors are sharded; the checkpoint package writes the files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from erniecore_checkpoint.parts import PartWriter
from erniecore_checkpoint.tensors import PLAIN, SHORT_NAMES
from erniecore_checkpoint.write_plan import Key, Spec, WritePlan, divide

from erniecore.engine.arrays import Array, dtype_name, to_numpy
from erniecore.types.process_group import ProcessGroup, ShardSpec

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
