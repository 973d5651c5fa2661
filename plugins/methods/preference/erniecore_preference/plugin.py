"""The plugin objects of the preference methods. Losses and encoding live beside it and are imported when built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from erniecore.api import ConfigError, hookimpl
from erniecore.api.method import MethodCapability, MethodPlugin
from erniecore_preference import config as sections

if TYPE_CHECKING:
    from erniecore.api.method import Encoder, Objective, Tokenizer

REFERENCE = frozenset({MethodCapability.REFERENCE})
#: The conformance kit compares gradients absolutely; with the default beta these losses have gradients ten times larger.
GENTLE: Mapping[str, Any] = {"beta": 0.5}
#: what a run has where nobody wrote anything
CAREFUL: Mapping[str, tuple[Any, str]] = {
    "train.learning_rate": (5e-7, "arXiv:2310.16944 (Zephyr) and ERNIEKit's examples of DPO; KTO in arXiv:2402.01306"),
    "train.warmup_ratio": (0.1, "arXiv:2310.16944 (Zephyr)"),
    "train.accumulation": (
        8,
        "eight sequences per step, as in the example configurations of ERNIEKit and LLaMA-Factory",
    ),
}


class ComparedPlugin(MethodPlugin):
    """A method that may have a reference."""

    defaults: ClassVar[Mapping[str, tuple[Any, str]]] = CAREFUL

    @hookimpl
    def ernie_check_settings(self, settings: Any) -> None:
        """Settings of the reference that contradict each other."""
        section = settings.method
        if not isinstance(section, sections.ReferenceConfig):
            return
        looked_up, free = section.reference == "precomputed", section.reference_use().source == "none"
        wrong = {
            "reference_update_steps": section.reference_update_steps
            and (looked_up or free)
            and "a reference that is precomputed, or that is none, cannot follow the policy; set it to 0",
            "reference": looked_up and free and "there is no reference to compute with method.reference_free=true",
            "kl": looked_up
            and isinstance(section, sections.KtoConfig)
            and section.kl != "none"
            and "the reference point pairs questions with other completions at every step, which cannot be precomputed; "
            "set method.kl=none, or method.reference=live",
            "reference_cache": section.reference_cache
            and not looked_up
            and "it is for method.reference=precomputed; leave it empty",
        }
        for key, message in wrong.items():
            if message:
                raise ConfigError.at(f"method.{key}", message)
        for key in settings.model.augments() if looked_up else ():
            message = f"values of a reference that is computed once are those of images that do not change: leave {key} out, or "
            raise ConfigError.at("method.reference", message + "set this to live")


class PairPlugin(ComparedPlugin):
    """Learn from pairs of a preferred and a rejected completion; ``name`` chooses the loss."""

    @hookimpl
    def ernie_build_objective(self, config: sections.PairConfig, policy: Any, reference: Any) -> Objective:
        """The loss over pairs."""
        from erniecore_preference.losses import LOSSES
        from erniecore_preference.objective import PairObjective

        compares = config.reference_use().source != "none"
        return PairObjective(LOSSES[self.name], config, policy, reference if compares else None)

    @hookimpl
    def ernie_build_encoder(
        self, config: sections.PairConfig, tokenizer: Tokenizer, max_length: int, too_long: str
    ) -> Encoder:
        """Both completions of a pair behind one prompt; rows that are too long are truncated unless ``data.too_long`` says
        otherwise."""
        from erniecore_preference.encoder import PairEncoder

        too_long = "truncate" if too_long == "auto" else too_long
        return PairEncoder(tokenizer, max_length, margin=config.needs_margin(), too_long=too_long)


class DpoPlugin(PairPlugin):
    """Direct preference optimization (DPO)."""

    name, summary = "dpo", "Direct preference optimization: chosen completions against rejected ones"
    Config, capabilities = sections.DpoConfig, REFERENCE


class IpoPlugin(PairPlugin):
    """Identity preference optimization (IPO)."""

    name, summary = "ipo", "Identity preference optimization: a squared loss that does not overfit clear preferences"
    Config, capabilities = sections.ContrastConfig, REFERENCE
    conformance_config: ClassVar[Mapping[str, Any]] = GENTLE


class HingePlugin(PairPlugin):
    """Sequence likelihood calibration (SLiC)."""

    name, summary = "hinge", "Preference hinge loss (SLiC): pairs that are far enough apart count no more"
    Config, capabilities = sections.ContrastConfig, REFERENCE


class RobustPlugin(PairPlugin):
    """DPO with known label noise."""

    name, summary = "robust", "Robust DPO: unbiased if a known fraction of pairs is in the wrong order"
    Config, capabilities = sections.RobustConfig, REFERENCE


class DpopPlugin(PairPlugin):
    """DPO with a penalty on less likely chosen completions."""

    name, summary = "dpop", "DPO-Positive: DPO that keeps chosen completions as likely as they were"
    Config, capabilities = sections.DpopConfig, REFERENCE


class SppoPlugin(PairPlugin):
    """Self-play preference optimization (SPPO)."""

    name, summary = "sppo", "Self-play preference optimization: log-ratios towards given probabilities of winning"
    Config, capabilities = sections.ReferredConfig, REFERENCE
    conformance_config: ClassVar[Mapping[str, Any]] = GENTLE


class NcaPlugin(PairPlugin):
    """Noise contrastive alignment (NCA)."""

    name, summary = "nca", "Noise contrastive alignment: each completion against the reference, not only the difference"
    Config, capabilities = sections.ReferredConfig, REFERENCE
    expected_failures: ClassVar[dict[str, str]] = {
        "method_can_overfit": "the loss is never below 0.95: it wants a probability, not a certainty"
    }


class KtoPairPlugin(PairPlugin):
    """The KTO loss over preference pairs."""

    name, summary = "kto-pair", "KTO over pairs: each completion against the divergence of the other ones"
    Config, capabilities = sections.ReferredConfig, REFERENCE


class SimpoPlugin(PairPlugin):
    """Simple preference optimization (SimPO)."""

    name, summary = "simpo", "Simple preference optimization: mean log-probabilities and a margin, no reference"
    Config = sections.SimpoConfig


class OrpoPlugin(PairPlugin):
    """Odds ratio preference optimization."""

    name, summary = "orpo", "Odds ratio preference optimization: fine-tuning and preference in one, no reference"
    Config = sections.OrpoConfig
    defaults: ClassVar[Mapping[str, tuple[Any, str]]] = {
        **CAREFUL,
        "train.learning_rate": (8e-6, "arXiv:2403.07691: fine-tuning is part of it"),
    }


class KtoPlugin(ComparedPlugin):
    """Learn from single completions that are good or bad."""

    name = "kto"
    summary = "Kahneman-Tversky optimization: single completions that are desirable or not"
    Config, capabilities = sections.KtoConfig, REFERENCE

    @hookimpl
    def ernie_build_objective(self, config: sections.KtoConfig, policy: Any, reference: Any) -> Objective:
        """The loss over rated completions."""
        from erniecore_preference.kto import KtoObjective

        return KtoObjective(config, policy, reference)

    @hookimpl
    def ernie_build_encoder(self, tokenizer: Tokenizer, max_length: int, too_long: str) -> Encoder:
        """The last completion of a conversation, and whether it is desirable; too long as for pairs."""
        from erniecore_preference.encoder import RatedEncoder

        too_long = "truncate" if too_long == "auto" else too_long
        return RatedEncoder(tokenizer, max_length, too_long=too_long)


dpo, ipo, hinge, robust, dpop = DpoPlugin(), IpoPlugin(), HingePlugin(), RobustPlugin(), DpopPlugin()
sppo, nca, kto_pair = SppoPlugin(), NcaPlugin(), KtoPairPlugin()
simpo, orpo, kto = SimpoPlugin(), OrpoPlugin(), KtoPlugin()
