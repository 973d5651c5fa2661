"""The settings of reinforcement learning."""

from __future__ import annotations

from typing import Literal

from erniecore.api import Field
from erniecore.api.method import MethodConfig, ReferenceUse


class GrpoConfig(MethodConfig):
    """Group-relative policy optimization."""

    group_size: int = Field(8, ge=2, description="Completions per prompt; each is compared with the others.")
    max_new_tokens: int = Field(128, ge=1, description="Tokens of an answer at most; it is cut off there.")
    temperature: float = Field(
        1.0, gt=0, description="Of sampling. Log-probabilities that are learned from have the same temperature."
    )
    top_k: int = Field(0, ge=0, description="Sample from the k most likely tokens; 0: all. Not seen by the loss.")
    top_p: float = Field(
        1.0, gt=0, le=1, description="Sample from the nucleus of this probability. Not seen by the loss."
    )
    min_p: float = Field(
        0.0, ge=0, lt=1, description="Sample tokens of this share of the best one's probability. Not seen by the loss."
    )
    rollout_batch_size: int = Field(0, ge=0, description="Answers decoded together, in whole groups; 0: all of a step.")
    learn_batch_size: int = Field(
        16, ge=1, description="Answers per micro-batch when learning: a matter of memory, the result is the same."
    )
    updates_per_rollout: int = Field(
        1,
        ge=1,
        description="Updates of the weights that learn from the same answers; steps count updates. With 1, the ratio of "
        "probabilities is 1 and nothing is clipped.",
    )
    ratio: Literal["token", "sequence"] = Field(
        "token",
        description="Importance ratio: of each token (GRPO), or of the whole answer with its mean log-ratio (GSPO; epsilons of "
        "3e-4 and 4e-4 go with it).",
    )
    epsilon_low: float = Field(0.2, gt=0, lt=1, description="Ratios below 1 - this are clipped.")
    epsilon_high: float = Field(
        0.28, gt=0, description="Ratios above 1 + this are clipped; higher than the other bound: clip-higher (DAPO)."
    )
    normalization: Literal["token", "sequence", "constant"] = Field(
        "token",
        description="Weight of a token. `token`: the same in all of the step (DAPO). `sequence`: 1 / length of its answer "
        "(GRPO, GSPO). `constant`: 1 / max_new_tokens per answer (Dr. GRPO).",
    )
    scale_rewards: Literal["std", "none"] = Field(
        "std", description="Divide advantages by the group's standard deviation (GRPO), or not (Dr. GRPO)."
    )
    zero_variance: Literal["keep", "drop"] = Field(
        "keep",
        description="Groups whose answers are all worth the same teach nothing. `keep`: they count in the denominators. `drop`: "
        "they do not, and their forward passes are saved.",
    )
    mask_truncated: bool = Field(
        False, description="Answers that were cut off are compared with, but not learned from (overlong filtering)."
    )
    kl: float = Field(
        0.0,
        ge=0,
        description="Weight of the divergence from the initial model (estimator k3); 0: off, no second model in memory.",
    )
    solved_at: float = Field(
        1.0, description="An answer of at least this reward counts as solved, in the metric `solved`."
    )

    def reference_use(self) -> ReferenceUse:
        """Nothing may be compared with the initial model."""
        return ReferenceUse("none" if self.kl == 0 else "live")


class UpoConfig(GrpoConfig):
    """Unified preference optimization."""

    pairs: Literal["online", "offline"] = Field(
        "online",
        description="`online`: of each group the best answer against the worst; rows are conversations. `offline`: pairs from "
        "the data; rows are preferences, whose better answer is also the reference answer for the rewards.",
    )
    pair_weight: float = Field(0.5, ge=0, description="Weight of the DPO term; lambda. 0: GRPO.")
    beta: float = Field(0.1, gt=0, description="Of the DPO term; high: stay close to the initial model.")
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="Assumed share of pairs in the wrong order.")

    def reference_use(self) -> ReferenceUse:
        """Nothing may be compared with the initial model."""
        return ReferenceUse("none" if self.kl == 0 and self.pair_weight == 0 else "live")
