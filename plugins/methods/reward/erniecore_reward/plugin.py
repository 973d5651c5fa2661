"""The plugin object of reward models. What it builds is imported inside the hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from erniecore.api import hookimpl
from erniecore.api.method import MethodCapability, MethodPlugin
from erniecore_reward.config import RewardModelingConfig

if TYPE_CHECKING:
    from erniecore.api.method import Encoder, Objective, Tokenizer


class RewardPlugin(MethodPlugin):
    """Learn a scalar reward from pairs of a preferred and a rejected completion."""

    name = "reward"
    summary = "Reward model: a scalar head that learns which of two completions is better"
    Config = RewardModelingConfig
    defaults: ClassVar[Mapping[str, tuple[Any, str]]] = {
        "train.learning_rate": (1e-5, "TRL's example of reward modeling; 9e-6 in arXiv:2203.02155"),
        "train.warmup_ratio": (0.03, "that of `sft`"),
        "train.accumulation": (
            8,
            "eight sequences per step, as in the example configurations of ERNIEKit and LLaMA-Factory",
        ),
    }
    capabilities = frozenset({MethodCapability.SCORE_HEAD})

    @hookimpl
    def ernie_build_objective(self, config: RewardModelingConfig, policy: Any) -> Objective:
        """The Bradley–Terry loss over pairs."""
        from erniecore_reward.objective import RewardObjective

        return RewardObjective(config, policy)

    @hookimpl
    def ernie_build_encoder(
        self, config: RewardModelingConfig, tokenizer: Tokenizer, max_length: int, too_long: str
    ) -> Encoder:
        """Both completions of a pair behind one prompt, read at their end tokens. By default no text is cut."""
        from erniecore_reward.encoder import RewardEncoder

        too_long = "turns" if too_long == "auto" else too_long
        return RewardEncoder(tokenizer, max_length, margin=config.margin_weight > 0, too_long=too_long)


plugin = RewardPlugin()
