"""Checks for a method's loss, over the toy model. How records become samples: ``encoder.py``.

The policy is watched: what a loss does to the hidden states that reach the head tells which positions it learns from.
Letters: B batch, S sequence, H hidden."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from erniecore.api.method import IGNORE, Batch, MethodCapability, Objective, Sample
from erniecore.api.reward import RewardFunction
from erniecore_conformance.check import Check
from erniecore_conformance.exercise import encoder_of
from erniecore_conformance.expect import NotApplicable, ensure, ensure_bits, ensure_close, ensure_equal
from erniecore_conformance.subjects import Subject
from erniecore_conformance.toys.data import collate, toy_records, toy_rewards
from erniecore_conformance.toys.tokenizer import ToyTokenizer


def _samples(subject: Subject) -> list[list[Sample]]:
    """The samples of eight records, one list per record."""
    encoder = encoder_of(subject)
    return [list(encoder.encode(record)) for record in toy_records(encoder.accepts)]


def _rows(groups: Sequence[Sequence[Sample]]) -> list[list[Sample]]:
    return [[sample] for group in groups for sample in group]


def _objective(subject: Subject, policy: Any, reference: Any = None) -> Objective:
    if MethodCapability.SCORE_HEAD in subject.plugin.capabilities:
        _add_score_head(policy)
    if reference is None and MethodCapability.REFERENCE in subject.plugin.capabilities:
        from erniecore_conformance.toys.paddle_lm import toy_model

        reference = _frozen(toy_model(seed=1))
    objective: Objective = subject.call(
        "ernie_build_objective",
        config=subject.config(),
        policy=policy,
        reference=reference,
        tokenizer=ToyTokenizer(),
    )
    return objective


def _prepared(objective: Objective, batches: Sequence[Batch]) -> list[Batch]:
    """What a step learns: these batches, or what the objective makes of them, e.g. rollouts."""
    trying: Any = objective
    if hasattr(trying, "reward_functions"):
        trying.reward_functions = [RewardFunction("toy", 1.0, toy_rewards)]
    return list(trying.prepare(batches, step=1, seed=7) if hasattr(trying, "prepare") else batches)


def _one(objective: Objective, batch: Batch) -> Batch:
    """The same for a single batch, which must stay one."""
    found = _prepared(objective, [batch])
    ensure(
        len(found) == 1,
        f"prepare made {len(found)} micro-batches of one; choose a conformance_config that keeps it one",
    )
    return found[0]


def _add_score_head(policy: Any) -> None:
    """As a run does before it builds the objective; the same head for every policy."""
    import paddle

    from erniecore.api.building import add_score_head

    paddle.seed(0)
    add_score_head(policy)


def _frozen(model: Any) -> Any:
    for parameter in model.parameters():
        parameter.stop_gradient = True
    return model


def _totals(objective: Objective, batches: Sequence[Batch]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for batch in batches:
        for name, value in objective.normalizers(batch).items():
            totals[name] = totals.get(name, 0.0) + value
    return totals


def _loss_and_gradients(subject: Subject, batches: Sequence[Batch], policy: Any = None) -> tuple[float, dict[str, Any]]:
    """Loss and gradients of one step over some micro-batches."""
    from erniecore_conformance.toys.compute import gradients
    from erniecore_conformance.toys.paddle_lm import toy_model

    policy = policy or toy_model()
    objective = _objective(subject, policy)
    batches = _prepared(objective, batches)
    totals, loss = _totals(objective, batches), 0.0
    for batch in batches:
        out = objective(batch, totals)
        out.loss.backward()
        loss += float(out.loss)
    return loss, gradients(policy)


def _ensure_same_step(
    found: tuple[float, dict[str, Any]], expected: tuple[float, dict[str, Any]], what: str, tolerance: float = 1e-6
) -> None:
    import numpy as np

    ensure_close(found[0], expected[0], tolerance * max(1.0, abs(expected[0])), f"loss {what}")
    for name, value in expected[1].items():
        other = found[1][name]
        ensure((value is None) == (other is None), f"gradient of {name} {what}: one of the two is missing")
        if value is not None:
            scale = max(1.0, float(np.abs(value).max()))
            ensure_close(other / scale, value / scale, tolerance, f"gradient of {name} {what}")


def check_method_loss_is_finite(subject: Subject) -> None:
    """The loss is a finite float32 scalar, and some parameter gets a finite, non-zero gradient."""
    import numpy as np
    import paddle

    from erniecore_conformance.toys.compute import gradients
    from erniecore_conformance.toys.paddle_lm import toy_model

    policy = toy_model()
    objective = _objective(subject, policy)
    batch = _one(objective, collate(_rows(_samples(subject))))
    loss = objective(batch, _totals(objective, [batch])).loss
    ensure_equal((loss.dtype, list(loss.shape)), (paddle.float32, []), "dtype and shape of the loss")
    ensure(bool(np.isfinite(float(loss))), f"the loss is {float(loss)}")
    loss.backward()
    found = [g for g in gradients(policy).values() if g is not None]
    ensure(all(np.isfinite(g).all() for g in found), "a gradient is not finite")
    ensure(any(np.any(g) for g in found), "no parameter gets a gradient")


def check_method_is_pure(subject: Subject) -> None:
    """Called twice, the objective gives the same loss and gradients, and changes neither weights nor batch."""
    from erniecore_conformance.toys.compute import clear_gradients, gradients, weights
    from erniecore_conformance.toys.paddle_lm import toy_model

    policy = toy_model()
    objective, before = _objective(subject, policy), weights(policy)
    batch = _one(objective, collate(_rows(_samples(subject))))
    arrays = {n: getattr(batch, n).copy() for n in ("input_ids", "labels", "position_ids", "startend_row_indices")}
    steps = []
    for _ in range(2):
        clear_gradients(policy)
        loss = objective(batch, _totals(objective, [batch])).loss
        loss.backward()
        steps.append((float(loss), gradients(policy)))
    _ensure_same_step(steps[1], steps[0], "of a second call", 1e-7)
    for name, value in weights(policy).items():
        ensure_bits(value, before[name], f"{name} after two calls")
    for name, array in arrays.items():
        ensure_bits(getattr(batch, name), array, f"batch.{name} after two calls")


def check_method_reports_its_loss(subject: Subject) -> None:
    """``metrics["loss"]`` is (sum, weight) with a positive weight, and sum / weight is the loss (<= 1e-5)."""
    from erniecore_conformance.toys.paddle_lm import toy_model

    objective = _objective(subject, toy_model())
    batch = _one(objective, collate(_rows(_samples(subject))))
    out = objective(batch, _totals(objective, [batch]))
    ensure("loss" in out.metrics, f"metrics are {sorted(out.metrics)}; `loss` must be one of them")
    total, weight = out.metrics["loss"]
    ensure(weight > 0, f"weight of the loss is {weight}")
    ensure_close(float(total) / weight, float(out.loss), 1e-5 * max(1.0, abs(float(out.loss))), "sum / weight of loss")


def check_method_normalizers_add_up(subject: Subject) -> None:
    """Normalizers are positive finite floats, and those of two batches add up to those of both in one."""
    from erniecore_conformance.toys.paddle_lm import toy_model

    groups = _samples(subject)
    objective = _objective(subject, toy_model())
    whole = objective.normalizers(_one(objective, collate(_rows(groups))))
    ensure(bool(whole), "no normalizers")
    halves = (collate(_rows(half)) for half in (groups[:3], groups[3:]))
    parts = [objective.normalizers(_one(objective, half)) for half in halves]
    for name, value in whole.items():
        ensure(0 < value < float("inf"), f"normalizer {name} is {value}")
        ensure_close(sum(float(p[name]) for p in parts), float(value), 1e-9 * value, f"normalizer {name} of two halves")


def check_method_mean_nll_in_closed_form(subject: Subject) -> None:
    """The loss is the mean negative log-likelihood of the loss tokens, computed in float64 with numpy (<= 1e-5)."""
    import numpy as np

    from erniecore_conformance.toys.compute import logits
    from erniecore_conformance.toys.paddle_lm import toy_model

    batch, policy = collate(_rows(_samples(subject))), toy_model()
    scores = logits(
        policy, batch.input_ids, position_ids=batch.position_ids, startend_row_indices=batch.startend_row_indices
    ).astype(np.float64)
    log_p = scores - np.log(np.exp(scores - scores.max(-1, keepdims=True)).sum(-1, keepdims=True))
    log_p -= scores.max(-1, keepdims=True)
    targets = batch.labels != IGNORE
    picked = np.take_along_axis(log_p, np.where(targets, batch.labels, 0)[..., None], axis=-1)[..., 0]
    expected = -float(picked[targets].mean())
    ensure_close(_loss_and_gradients(subject, [batch])[0], expected, 1e-5 * abs(expected), "loss against mean NLL")


def check_method_learns_only_labels(subject: Subject) -> None:
    """Positions whose label is IGNORE send no gradient through the head, the others do."""
    import numpy as np

    from erniecore_conformance.toys.paddle_watched import WatchedPolicy

    policy = WatchedPolicy()
    objective = _objective(subject, policy)
    batch = _one(objective, collate(_rows(_samples(subject))))
    objective(batch, _totals(objective, [batch])).loss.backward()
    targets, got = set(), False
    for ids, labels in zip(batch.input_ids, batch.labels, strict=True):
        targets |= {(tuple(ids[: t + 1]), t) for t in np.flatnonzero(labels != IGNORE)}
    for ids, gradient in policy.hidden_gradients():
        for b, t in zip(*np.nonzero(np.abs(gradient).sum(-1)), strict=True):
            got = True
            ensure((tuple(ids[b][: t + 1]), t) in targets, f"position {t} has label IGNORE but gets a gradient")
    ensure(got, "no hidden state gets a gradient")


def check_method_ignores_padding(subject: Subject) -> None:
    """Five more columns of padding leave loss and gradients (<= 3e-6: sums are taken in another order)."""
    rows = _rows(_samples(subject))
    plain, padded = (_loss_and_gradients(subject, [collate(rows, padding=n)]) for n in (0, 5))
    _ensure_same_step(padded, plain, "with five more columns of padding", 3e-6)


def check_method_ignores_order(subject: Subject) -> None:
    """The order of records in a batch leaves loss and gradients (<= 1e-6)."""
    groups = _samples(subject)
    plain, reordered = (_loss_and_gradients(subject, [collate(_rows(g))]) for g in (groups, groups[::-1]))
    _ensure_same_step(reordered, plain, "with records in another order")


def check_method_ignores_packing(subject: Subject) -> None:
    """Records packed into two rows give the loss and gradients of records in rows of their own (<= 1e-5)."""
    groups = _samples(subject)
    packed = [[s for group in half for s in group] for half in (groups[:5], groups[5:])]
    plain = _loss_and_gradients(subject, [collate(_rows(groups))])
    _ensure_same_step(_loss_and_gradients(subject, [collate(packed)]), plain, "of packed rows", 1e-5)


def check_method_ignores_micro_batches(subject: Subject) -> None:
    """One micro-batch of four unequal records and four of one give the same loss and gradients (<= 1e-6)."""
    groups = _samples(subject)[:4]
    whole = _loss_and_gradients(subject, [collate(_rows(groups))])
    split = _loss_and_gradients(subject, [collate(_rows([group])) for group in groups])
    _ensure_same_step(split, whole, "of four micro-batches against one")


def check_method_prepares_purely(subject: Subject) -> None:
    """Prepared twice for the same step and seed, batches are the same bits; weights and the given batches stay."""
    from erniecore_conformance.toys.compute import weights
    from erniecore_conformance.toys.paddle_lm import toy_model

    batch, policy = collate(_rows(_samples(subject))), toy_model()
    objective, before, ids = _objective(subject, policy), weights(policy), batch.input_ids.copy()
    if type(objective).prepare is Objective.prepare:
        raise NotApplicable("it learns the batches as they come")
    first, again = (_prepared(objective, [batch]) for _ in range(2))
    ensure_equal(len(again), len(first), "number of micro-batches prepared again")
    for one, two in zip(first, again, strict=True):
        ensure_bits(two.input_ids, one.input_ids, "ids prepared again")
        ensure_bits(two.labels, one.labels, "labels prepared again")
        for name, values in one.fields.items():
            ensure_bits(two.fields[name], values, f"field {name} prepared again")
    ensure_bits(batch.input_ids, ids, "the given ids after preparing")
    for name, value in weights(policy).items():
        ensure_bits(value, before[name], f"{name} after preparing")


CHECKS = (
    Check(check_method_loss_is_finite),
    Check(check_method_is_pure),
    Check(check_method_prepares_purely),
    Check(check_method_reports_its_loss),
    Check(check_method_normalizers_add_up),
    Check(check_method_mean_nll_in_closed_form, needs=MethodCapability.MEAN_NLL),
    Check(check_method_learns_only_labels),
    Check(check_method_ignores_padding),
    Check(check_method_ignores_order),
    Check(check_method_ignores_packing),
    Check(check_method_ignores_micro_batches),
)
