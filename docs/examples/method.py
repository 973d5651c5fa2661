"""Learns every token of documents."""

from collections.abc import Mapping, Sequence
from typing import Any

from erniecore.api import Field, hookimpl
from erniecore.api.data import Document
from erniecore.api.method import (
    IGNORE,
    Batch,
    Encoder,
    LossOutput,
    MethodConfig,
    MethodPlugin,
    Objective,
    Record,
    Sample,
    Tokenizer,
)


class EveryTokenConfig(MethodConfig):
    """Section ``method`` of the settings."""

    scale: float = Field(1.0, gt=0, description="Factor of the loss.")


class EveryTokenEncoder(Encoder):
    """A document as one sample, cut at the limit."""

    accepts = (Document,)

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        self.tokenizer, self.max_length = tokenizer, max_length

    def encode(self, record: Record) -> Sequence[Sample]:
        import numpy as np

        assert isinstance(record, Document)
        ids = np.array(self.tokenizer.encode(record.text)[: self.max_length], np.int64)
        n = len(ids)
        labels = np.append(ids[1:], IGNORE)
        return [Sample(ids, labels, np.arange(n), np.full(n, n, np.int32), origin=record.origin)]


class EveryTokenObjective(Objective):
    """Mean negative log-likelihood over the target tokens of a step."""

    def __init__(self, policy: Any, scale: float) -> None:
        self.policy, self.scale = policy, scale

    def normalizers(self, batch: Batch) -> Mapping[str, float]:
        return {"tokens": float((batch.labels != IGNORE).sum())}

    def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
        import paddle

        from erniecore.api import ops

        hidden = self.policy.features(paddle.to_tensor(batch.input_ids)).hidden
        weight, transposed, bias = self.policy.head()
        labels = paddle.to_tensor(batch.labels.reshape(-1))
        rows = hidden.reshape([-1, hidden.shape[-1]])
        total = ops.linear_cross_entropy(rows, weight, labels, transposed=transposed, bias=bias).sum()
        loss = self.scale * total / totals["tokens"]
        return LossOutput(loss, {"loss": (total.detach(), self.normalizers(batch)["tokens"])})


class EveryToken(MethodPlugin):
    """Section, encoder and objective together."""

    name, summary, Config = "every-token", "learns every token of documents", EveryTokenConfig

    @hookimpl
    def ernie_build_encoder(self, tokenizer: Tokenizer, max_length: int) -> Encoder:
        return EveryTokenEncoder(tokenizer, max_length)

    @hookimpl
    def ernie_build_objective(self, config: EveryTokenConfig, policy: Any) -> Objective:
        return EveryTokenObjective(policy, config.scale)


plugin = EveryToken()
