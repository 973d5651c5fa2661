"""The settings of reinforcement learning."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator, model_validator

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
    rollout_pool: int = Field(
        1,
        ge=1,
        description="Steps whose prompts are decoded together. A step ends its rollouts when the last completion of its own "
        "prompts has ended, on all processes; those of the following steps go on in the next step (ERNIE 5.0: unbiased replay "
        "buffer). 1: each step decodes its own prompts alone.",
    )
    rollout_mantissa: int = Field(
        0,
        ge=0,
        le=22,
        description="Roll out with weights rounded to this many mantissa bits (7: as bfloat16, 3: as FP8 E4M3), to try what a "
        "sampler of low precision does; learning and evaluation use the weights as they are. 0: not rounded.",
    )
    rollout_noise: float = Field(
        0.0,
        ge=0,
        description="Roll out with weights that have Gaussian noise of this share of a matrix's root mean square, another noise "
        "in every rollout, to try what a mismatch of sampler and learner does. 0: none.",
    )
    hint_probability: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Probability at the beginning that a prompt is asked with a hint, the first part of its reference answer, "
        "which is given and not learned (ERNIE 5.0). In step t it is this times exp(-hint_decay (t - 1) max(pass rate, "
        "hint_floor)), with the share of right completions that the initial model had, measured before the first step. 0: no "
        "hints.",
    )
    hint_decay: float = Field(0.01, ge=0, description="How fast hints become rarer.")
    hint_floor: float = Field(
        0.05,
        ge=0,
        le=1,
        description="Least pass rate that counts in this; 0: prompts that were never solved keep their hints.",
    )
    hint_share: float = Field(0.5, gt=0, lt=1, description="Share of the reference answer that a hint shows.")
    curriculum: tuple[tuple[int, float], ...] = Field(
        (),
        description="Stages of easy prompts first: [[step, pass rate], …]. From each step on, prompts that the initial model "
        "solved more rarely are left out of their batch. Empty: all prompts from the beginning.",
    )
    pass_rate_samples: int = Field(
        8,
        ge=1,
        description="Completions of every prompt before the first step, where hints or a curriculum need pass rates.",
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
        1.0,
        description="Completions with at least this reward count as solved: in the metric `solved`, and in pass rates.",
    )

    @field_validator("curriculum")
    @classmethod
    def _stages(cls, value: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
        steps = [step for step, _ in value]
        if steps != sorted(set(steps)) or not all(step >= 1 and 0 <= rate <= 1 for step, rate in value):
            raise ValueError("give pairs of a step, from 1 and ascending, and a pass rate from 0 to 1")
        return value

    @property
    def needs_pass_rates(self) -> bool:
        """Whether the initial model completes every prompt before the first step."""
        return self.hint_probability > 0 or bool(self.curriculum)


class GrpoConfig(RolloutConfig):
    """Settings of group-relative policy optimization."""

    mismatch: tuple[float, ...] = Field(
        (),
        description="Two bounds of κ = π_learner / π_sampler at the rollout: a token term is multiplied by its κ, and by 0 "
        "outside of them (IcePop; ERNIE 5.0 with `ratio: sequence`). Usual: [0.5, 5]. Empty: sampler and learner are taken as "
        "equal.",
    )

    router_replay: Literal["none", "learner", "sampler"] = Field(
        "none",
        description="Of a mixture of experts: learn with the experts that were chosen at the rollout. `learner`: by the weights "
        "that learn, as they were then (GSPO's routing replay). `sampler`: by those that sampled, which differ with "
        "`rollout_mantissa` and `rollout_noise`.",
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
    positives_reduction: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Completions that are better than the others lose this share of their weight where the prompt is learned "
        "well already: mean entropy below `positives_entropy`, and more than `positives_accuracy` of its completions solved "
        "(ERNIE 5.0). 0: off.",
    )
    positives_entropy: float = Field(0.3, gt=0, description="Nats per token.")
    positives_accuracy: float = Field(0.75, ge=0, lt=1, description="Share of the group's completions that are solved.")
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

    @model_validator(mode="after")
    def _no_hints_beside_given_pairs(self) -> UpoConfig:
        if self.pairs == "offline" and self.hint_probability:
            raise ValueError(
                "pairs of the data complete the prompt without a hint: set pairs: online, or hint_probability: 0"
            )
        return self

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
