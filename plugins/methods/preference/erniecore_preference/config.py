"""The settings of the preference methods: one class per set of keys that belong together."""

from __future__ import annotations

from typing import Literal

from erniecore.api import Field
from erniecore.api.method import MethodConfig, ReferenceUse

LengthNormalization = Literal["none", "mean", "balanced"]


class PairConfig(MethodConfig):
    """Settings of all methods over preference pairs."""

    beta: float = Field(0.1, gt=0, description="Scale of the log-ratios; larger values stay closer to the reference.")
    sft_weight: float = Field(
        0.0, ge=0, description="Weight of the mean negative log-likelihood per token of the chosen completions."
    )

    def needs_margin(self) -> bool:
        """Whether every pair must have a margin."""
        return False

    def normalization(self) -> LengthNormalization:
        """How log-probabilities are normalized by length."""
        return "none"


class ReferenceConfig(MethodConfig):
    """Settings of the reference model."""

    reference: Literal["live", "precomputed"] = Field(
        "live",
        description="`live`: a frozen copy of the initial model, under an adapter the model with the adapter off. "
        "`precomputed`: its log-probabilities of the training and eval splits are computed once before the first step and saved "
        "to disk, so that no second model is in memory.",
    )
    reference_update_steps: int = Field(
        0, ge=0, description="Steps after which the reference is replaced by the policy; 0: never."
    )
    reference_cache: str = Field(
        "",
        description="Directory of precomputed log-probabilities, shared by runs from the same weights. Empty: `reference/` in "
        "the run's directory.",
    )

    def reference_use(self) -> ReferenceUse:
        """As the keys say."""
        return ReferenceUse("precomputed" if self.reference == "precomputed" else "live", self.reference_update_steps)


class ReferredConfig(ReferenceConfig, PairConfig):
    """Settings of losses over pairs with a reference model."""

    length_normalization: LengthNormalization = Field(
        "none",
        description="`none`: summed log-probabilities, as in the papers. `mean`: per token. `balanced`: per token, times the "
        "mean length of the two completions (ERNIEKit's `normalize_logps`).",
    )

    def normalization(self) -> LengthNormalization:
        return self.length_normalization


class ContrastConfig(ReferredConfig):
    """Settings of losses that depend only on the difference of the two log-ratios; the reference is optional."""

    reference_optional = True
    reference_free: bool = Field(
        False, description="Use a uniform reference instead of the initial model; no second copy in memory."
    )

    def reference_use(self) -> ReferenceUse:
        """As the keys say."""
        return ReferenceUse("none") if self.reference_free else super().reference_use()


class DpoConfig(ContrastConfig):
    """Settings of direct preference optimization."""

    label_smoothing: float = Field(
        0.0, ge=0, lt=0.5, description="Assumed fraction of pairs with swapped labels (cDPO)."
    )
    offset_alpha: float = Field(
        0.0,
        ge=0,
        description="Offset of the reward difference: offset_alpha * ln(margin) (ODPO). Every row then needs a positive "
        "`margin`. 0: off.",
    )

    def needs_margin(self) -> bool:
        """True if ``offset_alpha`` is set."""
        return self.offset_alpha > 0


class RobustConfig(ContrastConfig):
    """Robust DPO: unbiased under label noise."""

    label_smoothing: float = Field(0.1, ge=0, lt=0.5, description="Known fraction of pairs with swapped labels.")


class DpopConfig(ReferredConfig):
    """DPO-Positive: a penalty keeps the likelihood of chosen completions."""

    penalty: float = Field(
        50.0,
        ge=0,
        description="Weight of the decrease in log-probability of the chosen completion against the reference.",
    )
    penalty_outside: bool = Field(
        False,
        description="Add the penalty to the loss, as ERNIEKit does, instead of inside the sigmoid, as in the paper.",
    )


class SimpoConfig(PairConfig):
    """Settings of simple preference optimization."""

    beta: float = Field(2.0, gt=0, description="Weight of the mean log-probabilities per token.")
    gamma: float = Field(1.0, ge=0, description="Target reward margin between the chosen and the rejected completion.")
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="Assumed fraction of pairs with swapped labels.")


class OrpoConfig(PairConfig):
    """Settings of odds ratio preference optimization."""

    beta: float = Field(0.1, gt=0, description="Weight of the odds ratio; lambda in the paper.")
    sft_weight: float = Field(
        1.0, ge=0, description="Weight of the mean negative log-likelihood per token of the chosen completions."
    )


class KtoConfig(ReferenceConfig):
    """Kahneman-Tversky optimization over unpaired preferences."""

    beta: float = Field(0.1, gt=0, description="Scale of the log-ratios; larger values stay closer to the reference.")
    desirable_weight: float = Field(1.0, ge=0, description="Weight of rows with a desirable completion.")
    undesirable_weight: float = Field(1.0, ge=0, description="Weight of rows with an undesirable completion.")
    kl: Literal["mismatched", "none"] = Field(
        "mismatched",
        description="Reference point. `mismatched`: the KL divergence from the reference, estimated from prompts with "
        "completions of other rows of the step, at least 0. `none`: 0, which saves two forward passes.",
    )
