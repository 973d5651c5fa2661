"""Which tensors are parts of something that other ranks have the rest of. The operators look here; a table by identity,
which forgets a tensor with its last reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import ref

from paddle import Tensor

if TYPE_CHECKING:
    from erniecore.types.sharding import ShardedIds, ShardedMask, ShardedParameter

Shard = TypeVar("Shard")


class ShardTable(Generic[Shard]):
    """Tensor -> its shard. Tensors compare elementwise, so the key is their identity."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[ref[Any], Shard]] = {}

    def bind(self, tensor: Tensor, shard: Shard | None) -> None:
        """``shard`` stands beside ``tensor`` from now on; None: nothing does."""
        key = id(tensor)
        if shard is None:
            self._entries.pop(key, None)
        else:
            self._entries[key] = ref(tensor, lambda gone: self._forget(key, gone)), shard

    def of(self, tensor: Tensor | None) -> Shard | None:
        """What stands beside ``tensor``."""
        entry = self._entries.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def _forget(self, key: int, gone: ref[Any]) -> None:
        if key in self._entries and self._entries[key][0] is gone:
            del self._entries[key]


#: head weights, row indices and ids of which this process has a part
sharded_parameters: ShardTable[ShardedParameter] = ShardTable()
sharded_masks: ShardTable[ShardedMask] = ShardTable()
sharded_ids: ShardTable[ShardedIds] = ShardTable()
