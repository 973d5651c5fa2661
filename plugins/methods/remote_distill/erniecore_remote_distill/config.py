"""The settings of distillation from a teacher at another site."""

from __future__ import annotations

from typing import Literal

from erniecore_distill.config import DistillConfig

from erniecore.api import Field


class RemoteDistillConfig(DistillConfig):
    """Knowledge distillation from a teacher at another site, which `ernie wan teach` serves."""

    teacher: str = Field("", description="Stays empty: the teacher is at `teacher_at`.")
    teacher_at: str = Field("", description="HOST:PORT of `ernie wan teach`.")
    key: str = Field("", description="Private key of this site, by `ernie wan keys`; its certificate lies beside it.")
    certificate: str = Field("", description="Certificate of the teacher.")
    fingerprint: str = Field(
        "",
        description="SHA-256 of the teacher's weights, as `ernie wan teach` prints it; another teacher is refused. Empty: that "
        "of the first reply, to which the run then keeps.",
    )
    top_k: int = Field(
        64, ge=1, description="The teacher's most likely tokens that travel; all others are one outcome."
    )
    form: Literal["float32", "float16"] = Field(
        "float32", description="How log-probabilities travel; `float16` halves them, rounded to 3 digits."
    )
    cache: str = Field(
        "",
        description="Directory that keeps what the teacher has said, for later epochs and runs. Empty: `teacher/` of the run.",
    )
    late: Literal["wait", "skip"] = Field(
        "wait",
        description="When the teacher is late or gone: the step waits, or goes on after `patience` seconds, with the labels "
        "alone for the samples that have no reply.",
    )
    patience: float = Field(30.0, gt=0, description="Seconds that a step waits for the teacher with `late: skip`.")
    timeout: float = Field(
        900.0,
        gt=0,
        description="Seconds without a connection to the teacher after which the run ends, with `late: wait`.",
    )
