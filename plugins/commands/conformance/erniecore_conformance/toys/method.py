"""A good method plugin: mean negative log-likelihood of assistant turns. What every check of kind ``method`` accepts.

Letters: B batch, S sequence, H hidden, V vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from erniecore.api import RowError, hookimpl
from erniecore.api.data import Conversation
from erniecore.api.method import (
    IGNORE,
    Batch,
    Encoder,
    LossOutput,
    MethodCapability,
    MethodPlugin,
    Objective,
    Record,
    Sample,
)
from erniecore.api.model import Tokenizer

if TYPE_CHECKING:
    from erniecore.api.testing import Layer, Tensor


class ToyObjective(Objective):
    """loss = sum over learned positions of -log p(label) / totals["tokens"]."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    def normalizers(self, batch: Batch) -> Mapping[str, float]:
        """The number of loss tokens."""
        return {"tokens": float((batch.labels != IGNORE).sum())}

    def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
        """Forward and loss."""
        total = self.losses(self.logits(batch), batch).sum()
        return LossOutput(total / totals["tokens"], {"loss": (total.detach(), self.normalizers(batch)["tokens"])})

    def logits(self, batch: Batch) -> Tensor:
        """float32 [B, S, V]."""
        import paddle

        features = self.policy.features(
            paddle.to_tensor(batch.input_ids),
            position_ids=paddle.to_tensor(batch.position_ids),
            startend_row_indices=paddle.to_tensor(batch.startend_row_indices),
        )
        return self.policy.logits(features.hidden)

    def losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """[B, S], zero where nothing is learned."""
        import paddle
        from paddle.nn import functional as F

        labels = paddle.to_tensor(batch.labels).unsqueeze(-1)
        return F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="none").squeeze(-1)


class ToyEncoder:
    """One sample per conversation; assistant turns are learned, the end of a turn as the token to stop with."""

    accepts: tuple[type, ...] = (Conversation,)

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        self.tokenizer, self.max_length = tokenizer, max_length

    def encode(self, record: Record) -> Sequence[Sample]:
        """Raises ``RowError`` for a conversation that is too long."""
        import numpy as np

        if not isinstance(record, Conversation) or self.tokenizer.chat_template is None:
            raise RowError("not a conversation")
        template = self.tokenizer.chat_template
        segments = template.segments(record.messages, record.tools)
        pieces = self.tokenizer.encode_segments(segments)
        ids = np.array([i for piece in pieces for i in piece], dtype=np.int64)
        learn = np.repeat([s.generated for s in segments], [len(p) for p in pieces])
        if len(ids) > self.max_length + 1:
            raise RowError(f"{len(ids)} tokens, allowed {self.max_length}")
        end, stop = self.tokenizer.special_tokens[template.turn_end], self.tokenizer.eos_id
        labels = np.where(learn, np.where(ids == end, stop, ids), IGNORE)[1:]
        n = len(labels)
        return [
            Sample(ids[:-1], labels, np.arange(n), np.full(n, n, dtype=np.int32), origin=record.origin),
        ]


class ToyMethodPlugin(MethodPlugin):
    """Supervised fine-tuning of the toy model."""

    name = "toy"
    summary = "mean negative log-likelihood for the conformance kit"
    capabilities = frozenset({MethodCapability.MEAN_NLL})

    @hookimpl
    def ernie_build_objective(self, policy: Layer) -> Objective:
        return ToyObjective(policy)

    @hookimpl
    def ernie_build_encoder(self, tokenizer: Tokenizer, max_length: int) -> Encoder:
        return ToyEncoder(tokenizer, max_length)


class ToyReferenceObjective(ToyObjective):
    """Raises the likelihood above the reference's: -mean log sigmoid(log p - log p_reference)."""

    def __init__(self, policy: Any, reference: Any) -> None:
        super().__init__(policy)
        self.reference = reference

    def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
        """Forward passes of both and loss."""
        import paddle
        from paddle.nn import functional as F

        ours = self.losses(self.logits(batch), batch)
        with paddle.no_grad():
            theirs = ToyObjective(self.reference).losses(ToyObjective(self.reference).logits(batch), batch)
        learned = paddle.to_tensor((batch.labels != IGNORE).astype("float32"))
        total = (-F.log_sigmoid(theirs - ours) * learned).sum()
        return LossOutput(total / totals["tokens"], {"loss": (total.detach(), self.normalizers(batch)["tokens"])})


class ToyReferencePlugin(MethodPlugin):
    """The same with a reference."""

    name = "toy-reference"
    summary = "likelihood against a reference for the conformance kit"
    capabilities = frozenset({MethodCapability.REFERENCE})

    @hookimpl
    def ernie_build_objective(self, policy: Layer, reference: Layer | None) -> Objective:
        return ToyReferenceObjective(policy, reference)

    @hookimpl
    def ernie_build_encoder(self, tokenizer: Tokenizer, max_length: int) -> Encoder:
        return ToyEncoder(tokenizer, max_length)


plugin = ToyMethodPlugin()
with_reference = ToyReferencePlugin()
