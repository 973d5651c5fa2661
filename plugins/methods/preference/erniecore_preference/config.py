"""The settings of the preference methods: one class per set of keys that belong together."""

from __future__ import annotations

from typing import Literal

from erniecore.api import Field
from erniecore.api.method import MethodConfig, ReferenceUse

LengthNormalization = Literal["none", "mean", "balanced"]


class PairConfig(MethodConfig):
    """What every method over pairs has."""

    beta: float = Field(0.1, gt=0, description="Weight of the log-probabilities; high: stay close to the reference.")
    sft_weight: float = Field(
        0.0, ge=0, description="Weight of the mean negative log-likelihood per token of the preferred answers."
    )

    def needs_margin(self) -> bool:
        """Whether every pair must say by how much its better answer is better."""
        return False

    def normalization(self) -> LengthNormalization:
        """How log-probabilities of answers of different lengths are compared."""
        return "none"


class ReferenceConfig(MethodConfig):
    """A reference, and how it is kept."""

    reference: Literal["live", "precomputed"] = Field(
        "live",
        description="`live`: a frozen copy of the initial model, under an adapter the model with the adapter off. "
        "`precomputed`: what the initial model makes of every training and held-out answer is computed once before the "
        "first step and kept on disk, so that no second model is in memory.",
    )
    reference_update_steps: int = Field(
        0, ge=0, description="After every so many steps the policy becomes the reference. 0: the reference stays."
    )
    reference_cache: str = Field(
        "",
        description="Directory of precomputed values, which later runs from the same weights use again. Empty: "
        "`reference/` in the run's directory.",
    )

    def reference_use(self) -> ReferenceUse:
        """As the keys say."""
        return ReferenceUse("precomputed" if self.reference == "precomputed" else "live", self.reference_update_steps)


class ReferredConfig(ReferenceConfig, PairConfig):
    """Pairs compared with the initial model."""

    length_normalization: LengthNormalization = Field(
        "none",
        description="`none`: summed log-probabilities, as in the papers. `mean`: per token. `balanced`: per token, times the "
        "mean length of the two answers (ERNIEKit's `normalize_logps`).",
    )

    def normalization(self) -> LengthNormalization:
        """``length_normalization``."""
        return self.length_normalization


class ContrastConfig(ReferredConfig):
    """Losses of the difference of the two log-ratios alone; they can do without a reference."""

    reference_optional = True
    reference_free: bool = Field(
        False, description="Compare with a uniform reference instead of the initial model: no second copy in memory."
    )

    def reference_use(self) -> ReferenceUse:
        """As the keys say."""
        return ReferenceUse("none") if self.reference_free else super().reference_use()


class DpoConfig(ContrastConfig):
    """Direct preference optimization."""

    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="Assumed share of pairs in the wrong order (cDPO).")
    offset_alpha: float = Field(
        0.0,
        ge=0,
        description="Weight of the rows' `margin`: the better answer must win by offset_alpha * ln(margin); every row then "
        "needs a positive margin. 0: off.",
    )

    def needs_margin(self) -> bool:
        """With ``offset_alpha``."""
        return self.offset_alpha > 0


class RobustConfig(ContrastConfig):
    """DPO without the bias of wrong labels."""

    label_smoothing: float = Field(0.1, ge=0, lt=0.5, description="Known share of pairs in the wrong order.")


class DpopConfig(ReferredConfig):
    """DPO that keeps the preferred answers likely."""

    penalty: float = Field(50.0, ge=0, description="Weight of what a preferred answer loses against the reference.")
    penalty_outside: bool = Field(
        False,
        description="Add the penalty to the loss, as ERNIEKit does, not inside of the sigmoid, as the paper does.",
    )


class SimpoConfig(PairConfig):
    """Simple preference optimization."""

    beta: float = Field(2.0, gt=0, description="Weight of the mean log-probabilities per token.")
    gamma: float = Field(1.0, ge=0, description="Margin by which the better answer must win, in units of the reward.")
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="Assumed share of pairs in the wrong order.")


class OrpoConfig(PairConfig):
    """Odds ratio preference optimization."""

    beta: float = Field(0.1, gt=0, description="Weight of the odds ratio; lambda in the paper.")
    sft_weight: float = Field(
        1.0, ge=0, description="Weight of the mean negative log-likelihood per token of the preferred answers."
    )


class KtoConfig(ReferenceConfig):
    """Learning from single answers that are good or bad."""

    beta: float = Field(0.1, gt=0, description="Weight of the log-ratios; high: stay close to the reference.")
    desirable_weight: float = Field(1.0, ge=0, description="Weight of rows with a desirable answer.")
    undesirable_weight: float = Field(1.0, ge=0, description="Weight of rows with an undesirable answer.")
    kl: Literal["mismatched", "none"] = Field(
        "mismatched",
        description="The reference point. `mismatched`: the divergence from the reference, estimated on questions with the "
        "answers of other rows of the step, never below 0. `none`: 0, which saves two forward passes.",
    )
