"""The plugin object of the optimizer ``muon``."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from math import prod
from typing import TYPE_CHECKING

from erniecore.api import ConfigError, hookimpl
from erniecore.api.optimizer import (
    OptimizerPlugin,
    ParameterSpec,
    ProcessGroup,
    StateBytes,
    TrainedParameter,
    adamw_bytes,
)
from erniecore.api.planning import BYTES
from erniecore_muon.config import MuonConfig, is_matrix

if TYPE_CHECKING:
    from erniecore.api.optimizer import Optimizer


class MuonPlugin(OptimizerPlugin):
    """Orthogonalized momentum for matrices of hidden layers, AdamW for embeddings, heads, norms, biases and routers."""

    name = "muon"
    summary = "Muon: orthogonalized momentum for matrices of hidden layers, AdamW for the rest"
    Config = MuonConfig

    @hookimpl
    def ernie_build_optimizer(
        self, config: MuonConfig, parameters: Sequence[TrainedParameter], ranks: ProcessGroup
    ) -> Optimizer:
        """Full matrices are gathered through ``ranks`` where they are sharded."""
        from erniecore_muon.muon import Muon

        return Muon(parameters, config, ranks)

    @hookimpl
    def ernie_optimizer_bytes(self, config: MuonConfig, parameters: Sequence[ParameterSpec]) -> Sequence[StateBytes]:
        """One momentum of a matrix, two moments of the rest; a float32 master for every weight of lower precision.

        Raises ``ConfigError`` for a pattern that fits no matrix."""
        for pattern in config.include:
            if not any(fnmatchcase(spec.name, pattern) and len(spec.shape) == 2 for spec in parameters):
                names = [spec.name for spec in parameters if len(spec.shape) == 2]
                message = f"no trained 2-D parameter fits {pattern!r}; their names are such as {', '.join(names[:3])}"
                raise ConfigError.at("optimizer.include", message)
        return [
            StateBytes(BYTES[config.moments] * prod(spec.shape), size.master)
            if is_matrix(config, spec.name, spec.role, spec.shape)
            else size
            for spec, size in zip(parameters, adamw_bytes(config, parameters), strict=True)
        ]


plugin = MuonPlugin()
