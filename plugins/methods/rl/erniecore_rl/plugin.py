"""The plugin objects of rl. What they build is imported inside the hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from erniecore.api import ConfigError, hookimpl
from erniecore.api.method import Encoder, MethodCapability, MethodPlugin, Objective, Tokenizer
from erniecore_rl.config import GrpoConfig, OnlineDpoConfig, RlooConfig, RolloutConfig, UpoConfig

if TYPE_CHECKING:
    from erniecore_rl.encoder import PairPromptEncoder, PromptEncoder

#: Small and in one micro-batch; with what is off by default, so that it is checked, too.
SMALL: Mapping[str, Any] = {"group_size": 4, "max_new_tokens": 6, "learn_batch_size": 64, "kl": 0.1}


class GrpoPlugin(MethodPlugin):
    """Learn from comparing several completions to the same prompt."""

    name = "grpo"
    summary = "Group-relative policy optimization with verifiable rewards (GRPO, DAPO, Dr. GRPO, GSPO)"
    Config: ClassVar[type[RolloutConfig]] = GrpoConfig
    capabilities = frozenset({MethodCapability.REFERENCE, MethodCapability.REWARDS})
    defaults: ClassVar[Mapping[str, tuple[Any, str]]] = {
        "train.learning_rate": (1e-6, "arXiv:2402.03300 (GRPO), arXiv:2503.14476 (DAPO)"),
    }
    conformance_config: ClassVar[Mapping[str, Any]] = SMALL
    generates = True

    @hookimpl
    def ernie_check_settings(self, settings: Any) -> None:
        """A prompt must fit beside a new completion, and a router be seen by who replays it."""
        tokens, limit = settings.method.max_new_tokens, settings.data.max_seq_len
        if tokens >= limit:
            message = (
                f"{tokens} leaves no room for a prompt in data.max_seq_len ({limit}); set method.max_new_tokens to less"
            )
            raise ConfigError.at("method.max_new_tokens", message)
        for key in settings.model.augments():
            raise ConfigError.at(key, "completions are made and learned from images as they are; leave it out")
        if settings.data.static_shapes:
            message = "learning goes through completions, which have their own lengths; set it to false"
            raise ConfigError.at("data.static_shapes", message)
        replays = isinstance(settings.method, GrpoConfig) and settings.method.router_replay != "none"
        if replays and settings.parallel.degree("pipeline") > 1:
            message = "needs ranks with all layers: leave parallel.pipeline out, or set this to none"
            raise ConfigError.at("method.router_replay", message)

    @hookimpl
    def ernie_build_objective(self, config: Any, policy: Any, reference: Any, tokenizer: Tokenizer) -> Objective:
        """Rollouts and the policy gradient."""
        from erniecore_rl.objective import GrpoObjective

        return GrpoObjective(config, policy, None if config.reference_use().source == "none" else reference, tokenizer)

    @hookimpl
    def ernie_build_encoder(self, config: Any, tokenizer: Tokenizer, max_length: int, too_long: str) -> Encoder:
        """Prompts with their reference answers. By default no text is cut."""
        from erniecore_rl.encoder import PromptEncoder

        too_long = "turns" if too_long == "auto" else too_long
        return PromptEncoder(tokenizer, max_length, new_tokens=config.max_new_tokens, too_long=too_long)


class UpoPlugin(GrpoPlugin):
    """Learn from comparing completions, and from pairs of them."""

    name = "upo"
    summary = "Unified preference optimization: clipped policy gradient and a DPO term over pairs"
    Config = UpoConfig

    @hookimpl
    def ernie_build_objective(self, config: Any, policy: Any, reference: Any, tokenizer: Tokenizer) -> Objective:
        """Rollouts, the policy gradient and the pairs."""
        from erniecore_rl.upo import UpoObjective

        return UpoObjective(config, policy, None if config.reference_use().source == "none" else reference, tokenizer)

    @hookimpl
    def ernie_build_encoder(self, config: Any, tokenizer: Tokenizer, max_length: int, too_long: str) -> Encoder:
        """Prompts with their reference answers, or with their pairs. By default no text is cut."""
        from erniecore_rl.encoder import PairPromptEncoder, PromptEncoder

        make: type[PairPromptEncoder | PromptEncoder] = (
            PairPromptEncoder if config.pairs == "offline" else PromptEncoder
        )
        too_long = "turns" if too_long == "auto" else too_long
        return make(tokenizer, max_length, new_tokens=config.max_new_tokens, too_long=too_long)


class RlooPlugin(GrpoPlugin):
    """Learn from completions that are better than the others, without a critic."""

    name = "rloo"
    summary = "REINFORCE with the mean of the other completions as baseline (RLOO)"
    Config = RlooConfig

    @hookimpl
    def ernie_build_objective(self, config: Any, policy: Any, reference: Any, tokenizer: Tokenizer) -> Objective:
        """Rollouts and the policy gradient."""
        from erniecore_rl.rloo import RlooObjective

        return RlooObjective(config, policy, None if config.kl == 0 else reference, tokenizer)


class OnlineDpoPlugin(GrpoPlugin):
    """Learn from pairs of the model's own completions."""

    name = "online-dpo"
    summary = "DPO on pairs of new completions that reward functions compare"
    Config = OnlineDpoConfig
    conformance_config: ClassVar[Mapping[str, Any]] = {k: v for k, v in SMALL.items() if k != "kl"}

    @hookimpl
    def ernie_build_objective(self, config: Any, policy: Any, reference: Any, tokenizer: Tokenizer) -> Objective:
        """Rollouts and the pairs."""
        from erniecore_rl.online_dpo import OnlineDpoObjective

        return OnlineDpoObjective(config, policy, reference, tokenizer)


grpo, upo, rloo, online_dpo = GrpoPlugin(), UpoPlugin(), RlooPlugin(), OnlineDpoPlugin()
