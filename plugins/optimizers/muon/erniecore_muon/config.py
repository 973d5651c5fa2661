"""Settings of the optimizer ``muon``."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

from erniecore.api import Field
from erniecore.api.optimizer import (
    AdamWConfig,
    ParameterRole,
)

if TYPE_CHECKING:
    pass


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
