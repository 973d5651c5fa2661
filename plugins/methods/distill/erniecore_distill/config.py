"""The settings of distillation."""

from __future__ import annotations

from typing import Literal

from erniecore.api import Field
from erniecore.api.method import MethodConfig, ReferenceUse


class DistillConfig(MethodConfig):
    """A student learns a teacher's distributions over the next token."""

    teacher: str = Field("", description="Model directory or run of the teacher; it needs the student's vocabulary.")
    divergence: Literal["forward-kl", "reverse-kl", "jsd"] = Field(
        "forward-kl",
        description="`forward-kl`: KL(teacher | student), covers all that the teacher does. `reverse-kl`: KL(student | "
        "teacher), keeps to what the teacher finds likely. `jsd`: between the two, see `beta`.",
    )
    beta: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="Of `jsd`: the mixture that both are compared with is beta * teacher + (1 - beta) * student.",
    )
    temperature: float = Field(
        1.0,
        gt=0,
        description="Divides the logits of both before the divergence, which counts times temperature^2; the likelihood of "
        "the labels is not touched.",
    )
    alpha: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Weight of the divergence; the rest, 1 - alpha, is that of fine-tuning on the labels.",
    )
    top_k: int = Field(
        0,
        ge=0,
        description="Compare the teacher's so many likeliest tokens, and all others together as one. 0: the whole vocabulary.",
    )
    cache: str = Field(
        "",
        description="Directory that keeps the teacher's `top_k` answers for further epochs and runs. Empty: ask the teacher "
        "each time.",
    )
    mtp_weight: float = Field(
        0.1, ge=0, description="Weight of the multi-token-prediction loss, for models that predict further tokens."
    )

    def reference_use(self) -> ReferenceUse:
        """The model that the student is compared with is the teacher; a copy of the student itself is of no use."""
        return ReferenceUse("none")
