"""Methods with one thing wrong in the loss; encoders with one thing wrong are in ``encoder.py``.

Letters: B batch, S sequence, V vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from erniecore.api import hookimpl
from erniecore.api.method import IGNORE, Batch, LossOutput, MethodCapability, Objective
from erniecore_conformance.mutants import encoder
from erniecore_conformance.mutants.mutant import mutant
from erniecore_conformance.toys.method import ToyMethodPlugin, ToyObjective, ToyReferenceObjective, ToyReferencePlugin

if TYPE_CHECKING:
    from erniecore.api.testing import Layer, Tensor


class Changed(ToyMethodPlugin):
    """A toy method with another objective, not known to be the mean NLL."""

    capabilities: ClassVar[frozenset[MethodCapability]] = frozenset()
    Loss: type[ToyObjective] = ToyObjective

    @hookimpl
    def ernie_build_objective(self, policy: Layer) -> Objective:
        return self.Loss(policy)


class DoubleLoss(Changed):
    """A loss in float64."""

    class Loss(ToyObjective):
        def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
            out = super().__call__(batch, totals)
            return LossOutput(out.loss.astype("float64"), out.metrics)


class Forgetful(Changed):
    """The loss grows with every call."""

    class Loss(ToyObjective):
        calls = 0

        def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
            import paddle

            self.calls += 1
            out = super().__call__(batch, totals)
            if self.calls != 2 or len(batch.labels) < 8 or not paddle.is_grad_enabled():
                return out
            return LossOutput(out.loss * 1.001, {"loss": (out.metrics["loss"][0] * 1.001, totals["tokens"])})


class PreparesAnew(Changed):
    """Each time that batches are prepared, another label is left out."""

    class Loss(ToyObjective):
        prepared = 0

        def prepare(self, batches: Sequence[Batch], *, step: int, seed: int) -> Sequence[Batch]:
            self.prepared += 1
            if self.prepared == 1:
                return batches
            labels = batches[0].labels.copy()
            labels[labels != IGNORE] = 5
            return [replace(batches[0], labels=labels), *batches[1:]]


class WrongReport(Changed):
    """The reported loss is a sum over rows, not over tokens."""

    class Loss(ToyObjective):
        def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
            out = super().__call__(batch, totals)
            return LossOutput(out.loss, {"loss": (out.metrics["loss"][0], float(batch.num_samples))})


class CountsRowsAsMean(Changed):
    """One normalizer is a mean, which does not add up."""

    class Loss(ToyObjective):
        def normalizers(self, batch: Batch) -> Mapping[str, float]:
            return {**super().normalizers(batch), "length": float((batch.labels != IGNORE).mean())}


class Biased(ToyMethodPlugin):
    """Says that it is the mean NLL, and is 1 % more."""

    @hookimpl
    def ernie_build_objective(self, policy: Layer) -> Objective:
        class Other(ToyObjective):
            def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
                out = super().__call__(batch, totals)
                return LossOutput(out.loss * 1.01, {"loss": (out.metrics["loss"][0] * 1.01, out.metrics["loss"][1])})

        return Other(policy)


class LearnsPrompt(Changed):
    """The first position is a target although its label is IGNORE."""

    class Loss(ToyObjective):
        def losses(self, logits: Tensor, batch: Batch) -> Tensor:
            import paddle

            first = (paddle.to_tensor(batch.position_ids) == 0) & (paddle.to_tensor(batch.input_ids) == 1)
            return super().losses(logits, batch) - 1e-3 * logits[..., 7] * first.astype("float32")


class CountsPadding(Changed):
    """Padding columns add to the loss."""

    class Loss(ToyObjective):
        def losses(self, logits: Tensor, batch: Batch) -> Tensor:
            width = max(0, batch.input_ids.shape[1] - 27)
            return super().losses(logits, batch) * (
                1.0 + 0.01 * (width > 0 and batch.num_samples == 8 and len(batch.labels) == 8)
            )


class FirstRowCountsMore(Changed):
    """The first row has twice the weight."""

    class Loss(ToyObjective):
        def losses(self, logits: Tensor, batch: Batch) -> Tensor:
            import paddle

            weight = paddle.ones([len(batch.labels), 1])
            if batch.num_samples == len(batch.labels) == 8 and batch.origins[0].line in (1, 8):
                weight[0] = 1.5
            return super().losses(logits, batch) * weight


class BlindToPacking(Changed):
    """Packed samples see each other."""

    class Loss(ToyObjective):
        def logits(self, batch: Batch) -> Tensor:
            import paddle

            features = self.policy.features(
                paddle.to_tensor(batch.input_ids), position_ids=paddle.to_tensor(batch.position_ids)
            )
            return self.policy.logits(features.hidden)


class MeanOfMeans(Changed):
    """Each micro-batch is divided by its own count."""

    class Loss(ToyObjective):
        def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
            out = super().__call__(batch, totals)
            own = self.normalizers(batch)["tokens"]
            return LossOutput(out.metrics["loss"][0] * 0 + out.loss * (totals["tokens"] / own), out.metrics)


class ScaledGradient(Changed):
    """The gradient is a tenth more than the slope of the loss."""

    class Loss(ToyObjective):
        def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
            out = super().__call__(batch, totals)
            return LossOutput(out.loss * 1.1 - (out.loss * 0.1).detach(), out.metrics)


class NaiveExponential(Changed):
    """Softmax by exponentials of raw logits."""

    class Loss(ToyObjective):
        def losses(self, logits: Tensor, batch: Batch) -> Tensor:
            import paddle

            labels = paddle.to_tensor(batch.labels)
            picked = paddle.take_along_axis(logits, labels.clip(min=0).unsqueeze(-1), axis=-1).squeeze(-1)
            targets = (labels != IGNORE).astype("float32")
            return (paddle.log(paddle.exp(logits).sum(-1)) - picked) * targets


class NeverLearns(Changed):
    """The distance to the labels is measured after a squashing that leaves hardly any gradient."""

    class Loss(ToyObjective):
        def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
            out = super().__call__(batch, totals)
            own = self.normalizers(batch)["tokens"]
            loss = 0.2 * own / totals["tokens"] + 0.01 * out.loss
            return LossOutput(loss, {"loss": (loss.detach() * totals["tokens"], own)})


class TrainsReference(ToyReferencePlugin):
    """The reference takes part in the graph."""

    @hookimpl
    def ernie_build_objective(self, policy: Layer, reference: Layer | None) -> Objective:
        class Other(ToyReferenceObjective):
            def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
                out = super().__call__(batch, totals)
                theirs = ToyObjective(self.reference)
                extra = theirs.losses(theirs.logits(batch), batch).sum() / totals["tokens"]
                return LossOutput(out.loss + extra - extra.detach(), out.metrics)

        return Other(policy, reference)


class IgnoresReference(ToyReferencePlugin):
    """The reference is taken and not used."""

    @hookimpl
    def ernie_build_objective(self, policy: Layer, reference: Layer | None) -> Objective:
        return ToyObjective(policy)


MUTANTS = (
    mutant("method_loss_is_finite", DoubleLoss),
    mutant("method_is_pure", Forgetful),
    mutant("method_prepares_purely", PreparesAnew),
    mutant("method_reports_its_loss", WrongReport),
    mutant("method_normalizers_add_up", CountsRowsAsMean),
    mutant("method_mean_nll_in_closed_form", Biased),
    mutant("method_learns_only_labels", LearnsPrompt),
    mutant("method_ignores_padding", CountsPadding),
    mutant("method_ignores_order", FirstRowCountsMore, also=("method_ignores_packing",)),
    mutant("method_ignores_packing", BlindToPacking),
    mutant("method_ignores_micro_batches", MeanOfMeans),
    mutant("method_gradient_is_the_slope", ScaledGradient),
    mutant("method_survives_extreme_logits", NaiveExponential),
    mutant("method_can_overfit", NeverLearns),
    mutant("method_leaves_reference_alone", TrainsReference),
    mutant("method_leaves_reference_alone", IgnoresReference),
    *encoder.MUTANTS,
)
