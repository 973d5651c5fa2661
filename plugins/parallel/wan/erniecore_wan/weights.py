"""The weights of a site as full float32 arrays on rank 0, and back into the shards of all its ranks. All ranks of the site call
everything here together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import paddle  # noqa: TID253

from erniecore.api import ConfigError
from erniecore.api.parallel import ParameterState, ProcessGroup, ShardSpec
from erniecore_wan.arrays import AnyArray
from erniecore_wan.fragments import Shapes, selected


class SiteWeights:
    """The trained parameters of a site that are exchanged.

    Args:
        slots: of this rank. patterns: of names; none: all trained parameters.

    Attributes:
        shapes: name -> shape of the full parameter, of all ranks.

    Raises:
        ConfigError: no parameter fits a pattern.
    """

    def __init__(self, ranks: ProcessGroup, slots: Sequence[ParameterState], patterns: Sequence[str]) -> None:
        self._ranks = ranks
        self._slots = {slot.name: slot for slot in slots}
        own = {name: list(self._spec(slot).shape) for name, slot in self._slots.items()}
        lists = ranks.all_gather_object(own)
        everything = {name: tuple(shape) for found in lists for name, shape in found.items()}
        for pattern in patterns:
            if not selected(list(everything), [pattern]):
                some = ", ".join(sorted(everything)[:3])
                raise ConfigError.at("parallel.payload", f"no trained parameter fits {pattern!r}; there are {some}, …")
        self.shapes: Shapes = {name: everything[name] for name in sorted(selected(list(everything), patterns))}
        #: name -> the first rank that has it
        self._owners = {name: next(r for r, found in enumerate(lists) if name in found) for name in self.shapes}

    def _spec(self, slot: ParameterState) -> ShardSpec:
        return self._ranks.shard_spec(slot.name, slot.parameter.shape)

    def gather(self, names: Sequence[str]) -> dict[str, AnyArray]:
        """Name -> full float32 array, on rank 0; the masters where there are any. Empty on other ranks."""
        found = {}
        for name in names:
            slot, array = self._slots.get(name), None
            if slot is not None:
                master = slot.state_tensors().get(f"{name}.master")
                spec = self._spec(slot)
                if master is not None and slot.part is not None:
                    spec = replace(spec, flat=slot.part)
                tensor = (slot.parameter if master is None else master).detach().astype("float32")
                array = tensor.numpy() if spec.is_full else self._ranks.gather_to_host(tensor, spec)
            if owner := self._owners[name]:
                mine = array if self._ranks.rank == owner else None
                array = self._ranks.broadcast(mine, "float32", self.shapes[name], owner)
            if self._ranks.rank == 0:
                assert array is not None
                found[name] = np.array(array, np.float32).reshape(self.shapes[name])
        return found

    def scatter(self, values: Mapping[str, AnyArray], names: Sequence[str]) -> None:
        """Full float32 arrays of rank 0 into the parameters of every rank, and their masters."""
        for name in names:
            given = np.ascontiguousarray(values[name]) if self._ranks.rank == 0 else None
            array = self._ranks.broadcast(given, "float32", self.shapes[name], 0)
            slot = self._slots.get(name)
            if slot is None:
                continue
            local = np.ascontiguousarray(self._spec(slot).take(np.asarray(array).reshape(self.shapes[name])))
            with paddle.no_grad():
                tensor = paddle.to_tensor(local).reshape(slot.parameter.shape).astype(slot.parameter.dtype)
                slot.parameter.copy_(tensor, True)
                if (master := slot.state_tensors().get(f"{name}.master")) is not None:
                    flat = local.reshape(-1)
                    flat = flat if slot.part is None else flat[slot.part[0] : slot.part[1]]
                    master.copy_(paddle.to_tensor(flat).reshape(master.shape), True)
