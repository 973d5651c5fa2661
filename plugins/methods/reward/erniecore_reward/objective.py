"""The objective of a reward model over pairs:

    L = (1 / N) Σ_pairs [ -log σ(c - r - w m) + center_weight (c + r)^2 ]        N: pairs of the whole step

with the rewards c, r of both completions, read from the final hidden states at their end tokens by the model's ``score``
head, in float32. Prompt and both completions are one pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import paddle  # noqa: TID253
from erniecore_preference.grouping import Completions, completions_of
from erniecore_preference.scoring import auxiliary_loss, inputs_of

from erniecore.api import PluginError
from erniecore.api.layers import child
from erniecore.api.method import Batch, LossOutput, Objective
from erniecore_reward.config import RewardModelingConfig
from erniecore_reward.losses import bradley_terry, centering

if TYPE_CHECKING:
    from erniecore_preference.scoring import Metrics
    from paddle import Tensor


class RewardObjective(Objective):
    """See ``erniecore.api.Objective``.

    Args:
        config: the method's section. policy: a ``CausalLM`` with a ``score`` head.

    Raises:
        PluginError: the model has no score head.
    """

    #: the loss is no likelihood of text: it has no perplexity
    is_nll = False

    def __init__(self, config: RewardModelingConfig, policy: Any) -> None:
        if child(policy, "score") is None:
            raise PluginError(
                "the model has no score head",
                expected="a model that a reward run has trained (its config.json names …ForSequenceClassification)",
                fix="train one with --method reward, or name its directory",
            )
        self.config, self.policy = config, policy

    def normalizers(self, batch: Batch) -> Mapping[str, float]:
        """``pairs``; ``seen``: all tokens but padding."""
        return {"pairs": len(completions_of(batch)) / 2, "seen": float(batch.num_tokens)}

    def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
        """Loss of one micro-batch; metrics ``rewards/*`` per pair, and ``router/*``."""
        completions = completions_of(batch)
        rewards, auxiliary = rewards_of(self.policy, batch, completions)
        extra, metrics = auxiliary_loss(auxiliary, batch, totals["seen"])
        if not len(completions):
            return LossOutput(loss=rewards.sum().astype("float32"), metrics={"loss": (0.0, 0.0)})
        chosen, rejected = rewards[0::2], rewards[1::2]
        losses = self._losses(chosen, rejected, batch, completions)
        loss = (losses.sum() / totals["pairs"]).astype("float32")
        metrics.update(measured(chosen.detach(), rejected.detach()))
        metrics["loss"] = losses.detach().sum(), len(completions) / 2
        return LossOutput(loss=loss if extra is None else loss + extra, metrics=metrics)

    def _losses(self, chosen: Tensor, rejected: Tensor, batch: Batch, completions: Completions) -> Tensor:
        config, margin = self.config, 0.0
        if config.margin_weight:
            rows = batch.fields["margin"].reshape(-1)[completions.first[0::2]]
            margin = paddle.to_tensor(rows.astype("float64")) * config.margin_weight
        losses = bradley_terry(chosen, rejected, margin, label_smoothing=config.label_smoothing)
        return losses + config.center_weight * centering(chosen, rejected) if config.center_weight else losses


def rewards_of(policy: Any, batch: Batch, completions: Completions) -> tuple[Tensor, Mapping[str, Tensor]]:
    """The reward of each completion, float64 [A], and the auxiliary losses of the forward pass."""
    features = policy.features(paddle.to_tensor(batch.input_ids), **inputs_of(batch))
    hidden_TH = features.hidden.reshape([-1, features.hidden.shape[-1]])
    if not len(completions):
        return hidden_TH[:0, 0].astype("float64"), features.auxiliary
    return read(policy, hidden_TH.gather(paddle.to_tensor(completions.where))), features.auxiliary


def read(policy: Any, hidden_AH: Tensor) -> Tensor:
    """Rewards float64 [A] of final hidden states [A, H]; the head works in its own dtype, float32."""
    return policy.score(hidden_AH.astype(policy.score.weight.dtype)).squeeze(-1).astype("float64")


def measured(chosen: Tensor, rejected: Tensor) -> Metrics:
    """Metrics as (sum, weight), under the names of preference methods; pairs with equal rewards are not accurate."""
    n = float(chosen.shape[0])
    means = {
        "rewards/chosen": chosen,
        "rewards/rejected": rejected,
        "rewards/margins": chosen - rejected,
        "rewards/accuracies": (chosen > rejected).astype("float64"),
    }
    return {name: (value.sum(), n) for name, value in means.items()}
