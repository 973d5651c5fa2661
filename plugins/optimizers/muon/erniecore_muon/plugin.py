"""The plugin object of the optimizer ``muon``, and its settings."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from math import prod
from typing import TYPE_CHECKING, Literal

from erniecore.api import ConfigError, Field, hookimpl
from erniecore.api.optimizer import (
    AdamWConfig,
    OptimizerPlugin,
    ParameterRole,
    ParameterSpec,
    ProcessGroup,
    StateBytes,
    TrainedParameter,
    adamw_bytes,
)
from erniecore.api.planning import BYTES

if TYPE_CHECKING:
    from erniecore.api.optimizer import Optimizer

#: what Muon updates; AdamW updates the rest
MATRICES = frozenset({ParameterRole.MATRIX, ParameterRole.EXPERTS})


class MuonConfig(AdamWConfig):
    """Muon for the matrices of hidden layers. `beta1`, `beta2` and `epsilon` are AdamW's, for all other parameters."""

    momentum: float = Field(0.95, ge=0, lt=1, description="Decay of the momentum of matrices.")
    nesterov: bool = Field(True, description="Nesterov momentum: orthogonalize gradient + momentum x the new momentum.")
    newton_schulz_steps: int = Field(5, ge=1, le=20, description="Iterations that orthogonalize a matrix.")
    newton_schulz_dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Dtype of these iterations. `auto`: bfloat16 on an accelerator for weights in bfloat16, else float32.",
    )
    include: tuple[str, ...] = Field(
        (),
        description="Patterns (`*.mlp.gate.weight`: routers) of further 2-D parameters that Muon updates, not AdamW; one that "
        "fits none is refused.",
    )
    adjust_lr: Literal["match-rms-adamw", "original"] = Field(
        "match-rms-adamw",
        description="Factor of the learning rate of a matrix. `match-rms-adamw`: 0.2 sqrt(max(inputs, outputs)), an update as "
        "large as AdamW's, so that `train.learning_rate` and `train.weight_decay` keep their meaning (arXiv:2502.16982). "
        "`original`: sqrt(max(1, outputs / inputs)) (Jordan et al., 2024).",
    )


def is_matrix(config: MuonConfig, name: str, role: ParameterRole, shape: Sequence[int]) -> bool:
    """Whether Muon updates a parameter; ``shape`` is that of the full one."""
    return role in MATRICES or (len(shape) == 2 and any(fnmatchcase(name, pattern) for pattern in config.include))


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
