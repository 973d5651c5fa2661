"""The weights of a site as full float32 arrays on rank 0, and back into the shards of all its ranks. All ranks of the site call
everything here together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import paddle  # noqa: TID253

from erniecore.api import ConfigError
from erniecore.api.parallel import ParameterState, ProcessGroup, ShardSpec
from erniecore_wan.arrays import AnyArray
from erniecore_wan.fragments import Shapes, selected

if TYPE_CHECKING:
    from paddle import Tensor


class SiteWeights:
    """The parameters of a site that are exchanged.

    Args:
        slots: trained parameters of this rank. patterns: of names; none: all trained parameters.
        moved: name -> parameter that may be moved without the optimizer, such as ``BLOCK.moe_statics.bias``; exchanged where
            the router ``BLOCK.gate…`` is.

    Attributes:
        shapes: name -> shape of the full parameter, of all ranks. averaged: names of those that were ``moved``.

    Raises:
        ConfigError: no parameter fits a pattern.
    """

    def __init__(
        self,
        ranks: ProcessGroup,
        slots: Sequence[ParameterState],
        patterns: Sequence[str],
        moved: Mapping[str, Tensor],
    ) -> None:
        self._ranks = ranks
        self._slots = {slot.name: slot for slot in slots}
        own = {name: list(self._spec(name, slot.parameter).shape) for name, slot in self._slots.items()}
        lists = ranks.all_gather_object(own)
        everything = {name: tuple(shape) for found in lists for name, shape in found.items()}
        for pattern in patterns:
            if not selected(list(everything), [pattern]):
                some = ", ".join(sorted(everything)[:3])
                raise ConfigError.at("parallel.payload", f"no trained parameter fits {pattern!r}; there are {some}, …")
        chosen = {name: everything[name] for name in selected(list(everything), patterns)}
        extra = {name: one for name, one in moved.items() if name not in everything and _router_is_in(name, chosen)}
        self._parameters = {**extra, **{slot.name: slot.parameter for slot in slots}}
        lists = [
            {**found, **more}
            for found, more in zip(
                lists, ranks.all_gather_object({n: list(p.shape) for n, p in extra.items()}), strict=True
            )
        ]
        more = {name: tuple(shape) for found in lists for name, shape in found.items() if name not in everything}
        self.averaged = frozenset(more)
        self.shapes: Shapes = dict(sorted({**chosen, **more}.items()))
        #: name -> the first rank that has it
        self._owners = {name: next(r for r, found in enumerate(lists) if name in found) for name in self.shapes}

    def _spec(self, name: str, parameter: Tensor) -> ShardSpec:
        return self._ranks.shard_spec(name, parameter.shape)

    def _master(self, name: str) -> tuple[Tensor | None, tuple[int, int] | None]:
        """The optimizer's copy of a parameter, and which part of it this rank has; ``None``: no copy, all of it."""
        slot = self._slots.get(name)
        return (None, None) if slot is None else (slot.state_tensors().get(f"{name}.master"), slot.part)

    def gather(self, names: Sequence[str]) -> dict[str, AnyArray]:
        """Name -> full float32 array, on rank 0; the masters where there are any. Empty on other ranks."""
        found = {}
        for name in names:
            parameter, array = self._parameters.get(name), None
            if parameter is not None:
                master, owned = self._master(name)
                spec = self._spec(name, parameter)
                if master is not None and owned is not None:
                    spec = replace(spec, flat=owned)
                tensor = (parameter if master is None else master).detach().astype("float32")
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
            parameter = self._parameters.get(name)
            if parameter is None:
                continue
            local = np.ascontiguousarray(self._spec(name, parameter).take(np.asarray(array).reshape(self.shapes[name])))
            with paddle.no_grad():
                parameter.copy_(paddle.to_tensor(local).reshape(parameter.shape).astype(parameter.dtype), True)
                master, owned = self._master(name)
                if master is not None:
                    flat = local.reshape(-1)
                    flat = flat if owned is None else flat[owned[0] : owned[1]]
                    master.copy_(paddle.to_tensor(flat).reshape(master.shape), True)


def _router_is_in(name: str, exchanged: Collection[str]) -> bool:
    """Whether the router of ``BLOCK.moe_statics.bias`` is among names of exchanged parameters."""
    block = name.rpartition(".")[0].rpartition(".")[0]
    return any(other.startswith(f"{block}.gate") for other in exchanged)
