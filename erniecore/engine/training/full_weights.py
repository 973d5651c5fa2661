"""The full weights of a model whose weights are sharded over ranks, on rank 0: for writing, not for computing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from erniecore_checkpoint.tensors import LONG_NAMES

from erniecore.engine.arrays import Array, share_memory, to_tensor
from erniecore.engine.training.gather import LocalShard, assign, gather_tensor
from erniecore.types.process_group import ProcessGroup

if TYPE_CHECKING:
    from erniecore.types.model import Tensor


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
