"""The settings of online distillation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from erniecore_pretrain.config import PretrainConfig
from pydantic import field_validator

from erniecore.api import Field

#: name of the teaching assistant among the students
ASSISTANT = "assistant"


class OnlineDistillConfig(PretrainConfig):
    """Pre-training of a teacher, from whose forward passes students learn at the same time."""

    students: dict[str, str] = Field(
        default_factory=dict,
        description="Name -> model directory of each student, such as `{small: models/small}`. They need the teacher's "
        "tokenizer. What they have become is in `students/NAME` of the run.",
    )
    assistant: str = Field(
        "",
        description="Model directory of a teaching assistant: it learns from the teacher, and the students learn from it in the "
        "same step. What it has become is in `students/assistant`. Empty: the students learn from the teacher.",
    )
    attention: float = Field(
        1.0, ge=0, description="Weight of the divergence between the attention distributions of the last layers."
    )
    heads: Literal["average", "each"] = Field(
        "average",
        description="`average`: the distributions are averaged over the heads, so that students may have fewer. `each`: head by "
        "head; every student needs as many as the model that it learns from.",
    )
    auxiliary_layer: bool = Field(
        True,
        description="Give each student one more layer, whose attention is compared in place of its last one's. It is left out of "
        "`students/NAME`.",
    )
    logits: float = Field(1.0, ge=0, description="Weight of the divergence between the next-token distributions.")
    temperature: float = Field(
        1.0, gt=0, description="Divides the logits in their divergence, which is scaled by temperature^2."
    )
    labels: float = Field(0.0, ge=0, description="Weight of the students' negative log-likelihood of the next token.")
    learning_rate: float = Field(
        0.0, ge=0, description="Peak learning rate of the students, on the run's schedule. 0: `train.learning_rate`."
    )
    weight_decay: float = Field(0.01, ge=0, description="Of the students' matrices.")
    max_grad_norm: float = Field(1.0, ge=0, description="Clip the gradient of each student to this norm; 0: off.")

    @field_validator("students")
    @classmethod
    def _named(cls, students: dict[str, str]) -> dict[str, str]:
        for name in students:
            if not name.replace("-", "").replace("_", "").isalnum() or name == ASSISTANT:
                raise ValueError(
                    f"{name!r} is no name for a student: letters, digits, - and _, and not {ASSISTANT!r}, which has a setting "
                    "of its own"
                )
        return students

    def directories(self) -> dict[str, str]:
        """Name -> model directory of all that learn beside the teacher, the assistant first."""
        return {**({ASSISTANT: self.assistant} if self.assistant else {}), **self.students}

    def other_models(self) -> Sequence[str]:
        """The models that the students start from."""
        return tuple(self.directories().values())
