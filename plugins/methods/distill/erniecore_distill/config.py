"""The settings of distillation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from erniecore.api import Field
from erniecore.api.method import MethodConfig, ReferenceUse


class DistillConfig(MethodConfig):
    """Knowledge distillation: the student matches the teacher's next-token distributions."""

    teacher: str = Field("", description="Model directory or run of the teacher; it needs the student's vocabulary.")
    divergence: Literal["forward-kl", "reverse-kl", "jsd"] = Field(
        "forward-kl",
        description="`forward-kl`: KL(teacher | student), mass-covering. `reverse-kl`: KL(student | teacher), mode-seeking. "
        "`jsd`: generalized Jensen-Shannon divergence, see `beta`.",
    )
    beta: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="For `jsd`: the mixture is beta * teacher + (1 - beta) * student.",
    )
    temperature: float = Field(
        1.0,
        gt=0,
        description="Divides the logits of teacher and student in the divergence, which is scaled by temperature^2. The loss on "
        "the labels does not use it.",
    )
    alpha: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Weight of the divergence; the loss on the labels has weight 1 - alpha.",
    )
    top_k: int = Field(
        0,
        ge=0,
        description="Compare the teacher's k most likely tokens, and all others as one. 0: the whole vocabulary.",
    )
    cache: str = Field(
        "",
        description="Directory that caches the teacher's `top_k` log-probabilities for later epochs and runs. Empty: the teacher "
        "runs every time.",
    )
    mtp_weight: float = Field(
        0.1, ge=0, description="Weight of the multi-token prediction loss, for models with MTP layers."
    )

    def other_models(self) -> Sequence[str]:
        """The model whose distributions the student matches."""
        return (self.teacher,) if self.teacher else ()

    def reference_use(self) -> ReferenceUse:
        """None: the student is compared with the teacher."""
        return ReferenceUse("none")
