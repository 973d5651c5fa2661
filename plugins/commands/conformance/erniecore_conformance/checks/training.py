"""Checks for a method's gradients and behavior in training, over the toy model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from erniecore.api.method import MethodCapability
from erniecore_conformance.check import Check
from erniecore_conformance.checks.method import _frozen, _objective, _one, _rows, _samples, _totals
from erniecore_conformance.expect import CheckFailed, ensure, ensure_bits
from erniecore_conformance.subjects import Subject
from erniecore_conformance.toys.data import collate

if TYPE_CHECKING:
    from erniecore.api.method import Batch, Objective


def _value(objective: Objective, batch: Batch) -> float:
    import paddle

    with paddle.no_grad():
        return float(objective(batch, _totals(objective, [batch])).loss)


def check_method_gradient_is_the_slope(subject: Subject) -> None:
    """Along its own direction the gradient equals the slope of the loss: central differences at two steps,
    extrapolated (<= 1 %, float32)."""
    from erniecore_conformance.toys.compute import gradients
    from erniecore_conformance.toys.paddle_lm import toy_model

    policy = toy_model()
    objective = _objective(subject, policy)
    batch = _one(objective, collate(_rows(_samples(subject))))
    objective(batch, _totals(objective, [batch])).loss.backward()
    slopes = {n: g for n, g in gradients(policy).items() if g is not None}
    norm = sum(float((g.astype("float64") ** 2).sum()) for g in slopes.values()) ** 0.5
    ensure(norm > 0, "the gradient is zero")
    direction = {n: g / norm for n, g in slopes.items()}
    wide, narrow = (_slope(objective, batch, policy, direction, step) for step in (1e-2, 5e-3))
    measured = (4 * narrow - wide) / 3
    ensure(
        abs(measured - norm) <= 0.01 * norm + 1e-3,
        f"the gradient's norm is {norm:.6g}, but the loss rises by {measured:.6g} per unit along it",
    )


def _slope(objective: Objective, batch: Batch, policy: Any, direction: dict[str, Any], step: float) -> float:
    """Central difference of the loss along a direction; the weights are put back."""
    parameters = dict(policy.named_parameters())
    start = {n: parameters[n].numpy().copy() for n in direction}
    values = []
    for sign in (1.0, -1.0):
        for n, d in direction.items():
            parameters[n].set_value(start[n] + sign * step * d)
        values.append(_value(objective, batch))
    for n, value in start.items():
        parameters[n].set_value(value)
    return (values[0] - values[1]) / (2 * step)


def check_method_survives_extreme_logits(subject: Subject) -> None:
    """With logits of the order of 10,000 loss and gradients stay finite."""
    import numpy as np

    from erniecore_conformance.toys.compute import gradients
    from erniecore_conformance.toys.paddle_lm import toy_model

    policy = toy_model()
    policy.lm_head.weight.set_value(policy.lm_head.weight * 1e4)
    objective = _objective(subject, policy)
    batch = _one(objective, collate(_rows(_samples(subject))))
    loss = objective(batch, _totals(objective, [batch])).loss
    loss.backward()
    ensure(bool(np.isfinite(float(loss))), f"the loss is {float(loss)}")
    bad = [n for n, g in gradients(policy).items() if g is not None and not np.isfinite(g).all()]
    ensure(not bad, f"gradients are not finite: {', '.join(bad[:5])}")


def check_method_leaves_reference_alone(subject: Subject) -> None:
    """The reference model gets no gradient, keeps its weights, and the loss depends on it."""
    from erniecore_conformance.toys.compute import weights
    from erniecore_conformance.toys.paddle_lm import toy_model

    given, policy, reference = collate(_rows(_samples(subject))), toy_model(seed=0), toy_model(seed=1)
    before = weights(reference)
    objective = _objective(subject, policy, reference)
    batch = _one(objective, given)
    loss = objective(batch, _totals(objective, [batch])).loss
    loss.backward()
    touched = [n for n, p in reference.named_parameters() if p.grad is not None and bool((p.grad != 0).any())]
    ensure(not touched, f"the reference gets gradients: {', '.join(touched[:5])}")
    for name, value in weights(reference).items():
        ensure_bits(value, before[name], f"the reference's {name}")
    another = _objective(subject, policy, _frozen(toy_model(seed=2)))
    other = _value(another, _one(another, given))
    ensure(other != float(loss), "the loss does not depend on the reference")


def check_method_can_overfit(subject: Subject) -> None:
    """At most forty AdamW steps on eight records bring the loss under a third of its start, or under zero."""
    losses = []
    for loss in _losses(subject, steps=40):
        losses.append(loss)
        if loss < max(losses[0] / 3, 0.0):
            return
    raise CheckFailed(f"loss {losses[0]:.4g} at the start, {losses[-1]:.4g} after {len(losses)} steps")


def _losses(subject: Subject, steps: int) -> Iterator[float]:
    """The loss of each step of training on one batch."""
    import paddle

    from erniecore_conformance.toys.paddle_lm import toy_model

    policy = toy_model()
    objective = _objective(subject, policy)
    batch: Any = _one(objective, collate(_rows(_samples(subject))))
    optimizer = paddle.optimizer.AdamW(3e-2, parameters=policy.parameters(), weight_decay=0.0)
    policy.train()
    for _ in range(steps):
        loss = objective(batch, _totals(objective, [batch])).loss
        loss.backward()
        yield float(loss)
        optimizer.step()
        optimizer.clear_grad()
        policy.after_step()


CHECKS = (
    Check(check_method_gradient_is_the_slope),
    Check(check_method_survives_extreme_logits),
    Check(check_method_leaves_reference_alone, needs=MethodCapability.REFERENCE),
    Check(check_method_can_overfit),
)
