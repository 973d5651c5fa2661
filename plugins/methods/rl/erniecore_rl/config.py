"""The settings of reinforcement learning."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from erniecore.api import Field
from erniecore.api.method import MethodConfig, ReferenceUse


class RolloutConfig(MethodConfig):
    """What all methods say of their rollouts."""

    group_size: int = Field(8, ge=2, description="Completions per prompt; each is compared with the others.")
    max_new_tokens: int = Field(
        128, ge=1, description="Maximum number of tokens of a completion; longer ones are cut off."
    )
    temperature: float = Field(
        1.0, gt=0, description="Sampling temperature; the loss uses log-probabilities at the same temperature."
    )
    top_k: int = Field(0, ge=0, description="Sample from the k most likely tokens; 0: all. The loss ignores it.")
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Nucleus sampling: the smallest set of tokens with this cumulative probability. The loss ignores it.",
    )
    min_p: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Sample tokens with at least this fraction of the highest probability. The loss ignores it.",
    )
    rollout_batch_size: int = Field(
        0, ge=0, description="Completions that are decoded together, in whole groups; 0: all of a step."
    )
    learn_batch_size: int = Field(
        16, ge=1, description="Completions per micro-batch of an update; affects memory, not the result."
    )
    updates_per_rollout: int = Field(
        1,
        ge=1,
        description="Optimizer steps per rollout. With 1, the importance ratio is 1 and nothing is clipped.",
    )
    solved_at: float = Field(
        1.0, description="Completions with at least this reward count as solved in the metric `solved`."
    )


class GrpoConfig(RolloutConfig):
    """Settings of group-relative policy optimization."""

    mismatch: tuple[float, ...] = Field(
        (),
        description="Two bounds of κ = π_learner / π_sampler at the rollout: a token term is multiplied by its κ, and by 0 "
        "outside of them (IcePop; ERNIE 5.0 with `ratio: sequence`). Usual: [0.5, 5]. Empty: sampler and learner are taken as "
        "equal.",
    )

    ratio: Literal["token", "sequence"] = Field(
        "token",
        description="Importance ratio per token (GRPO), or per completion from its mean log-ratio (GSPO, with epsilons of 3e-4 "
        "and 4e-4).",
    )
    epsilon_low: float = Field(0.2, gt=0, lt=1, description="Ratios below 1 - this are clipped.")
    epsilon_high: float = Field(
        0.28, gt=0, description="Ratios above 1 + this are clipped; larger than `epsilon_low`: clip-higher (DAPO)."
    )
    normalization: Literal["token", "sequence", "constant"] = Field(
        "token",
        description="Weight of a token. `token`: equal for all tokens of a step (DAPO). `sequence`: 1 / length of its completion "
        "(GRPO, GSPO). `constant`: 1 / max_new_tokens (Dr. GRPO).",
    )
    scale_rewards: Literal["std", "none"] = Field(
        "std", description="Divide advantages by the group's standard deviation (GRPO), or not (Dr. GRPO)."
    )
    zero_variance: Literal["keep", "drop"] = Field(
        "keep",
        description="Groups whose rewards are all equal have no gradient. `keep`: they count in the denominators. `drop`: they "
        "do not, which saves their forward passes.",
    )
    mask_truncated: bool = Field(
        False,
        description="Exclude truncated completions from the loss; their rewards still count in the group (overlong "
        "filtering).",
    )
    kl: float = Field(
        0.0,
        ge=0,
        description="Weight of the KL divergence from the initial model (k3 estimator); 0: off, no reference in memory.",
    )

    @field_validator("mismatch")
    @classmethod
    def _two_bounds(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if value and not (len(value) == 2 and 0 <= value[0] < 1 < value[1]):
            raise ValueError("give a bound from 0 to below 1 and one above 1, or none")
        return value

    def reference_use(self) -> ReferenceUse:
        """No reference if ``kl`` is 0."""
        return ReferenceUse("none" if self.kl == 0 else "live")


class UpoConfig(GrpoConfig):
    """Settings of unified preference optimization."""

    pairs: Literal["online", "offline"] = Field(
        "online",
        description="`online`: the best completion of each group against the worst; rows are conversations. `offline`: pairs "
        "from the data; rows are preference pairs, and the chosen completion is also the reference answer for the rewards.",
    )
    pair_weight: float = Field(0.5, ge=0, description="Weight of the DPO term; lambda. 0: GRPO.")
    beta: float = Field(0.1, gt=0, description="Beta of the DPO term; larger values stay closer to the initial model.")
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="Assumed fraction of pairs with swapped labels.")

    def reference_use(self) -> ReferenceUse:
        """No reference if neither ``kl`` nor ``pair_weight`` is set."""
        return ReferenceUse("none" if self.kl == 0 and self.pair_weight == 0 else "live")


class RlooConfig(RolloutConfig):
    """Settings of REINFORCE leave-one-out."""

    kl: float = Field(
        0.05,
        ge=0,
        description="Weight of the KL divergence from the initial model, a part of the reward of a completion; 0: off, no "
        "reference in memory.",
    )
    epsilon_low: float = Field(0.2, gt=0, lt=1, description="Ratios of completions below 1 - this are clipped.")
    epsilon_high: float = Field(0.2, gt=0, description="Ratios of completions above 1 + this are clipped.")

    def reference_use(self) -> ReferenceUse:
        """No reference if ``kl`` is 0."""
        return ReferenceUse("none" if self.kl == 0 else "live")


class OnlineDpoConfig(RolloutConfig):
    """Settings of online DPO."""

    group_size: int = Field(
        2, ge=2, description="Completions per prompt; the best and the worst one are the pair, if their rewards differ."
    )
    mask_truncated: bool = Field(False, description="Truncated completions are in no pair.")
    beta: float = Field(0.1, gt=0, description="Larger values stay closer to the initial model.")
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="Assumed fraction of pairs with swapped labels.")

    def reference_use(self) -> ReferenceUse:
        """Always in memory: the completions are new in every rollout."""
        return ReferenceUse("live")
