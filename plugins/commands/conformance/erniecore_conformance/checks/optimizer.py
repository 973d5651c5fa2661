"""Checks for optimizers, over a few parameters of every role whose loss is a distance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erniecore.api.optimizer import ParameterSpec
from erniecore_conformance.check import Check
from erniecore_conformance.expect import ensure, ensure_equal
from erniecore_conformance.subjects import Subject
from erniecore_conformance.toys.distances import PARAMETERS, Distances

if TYPE_CHECKING:
    pass


def _ensure_same(found: Distances, expected: Distances, what: str, tolerance: float = 0.0) -> None:
    ours, theirs = found.weights(), expected.weights()
    for name, values in theirs.items():
        error = float(abs(ours[name] - values).max())
        ensure(error <= tolerance, f"{name} differs by {error:.2g} {what}")


def check_optimizer_decreases_a_convex_loss(subject: Subject) -> None:
    """Twenty steps bring parameters of every role nearer to the minimum of a squared distance."""
    made = Distances(subject)
    before, start = made.weights(), float(made.loss())
    made.train(20)
    ensure(float(made.loss()) < start, f"the loss rose from {start:.4g} to {float(made.loss()):.4g}")
    for name, values in made.weights().items():
        ensure(bool((values != before[name]).any()), f"{name} has a gradient and was not updated")


def check_optimizer_state_round_trip_is_bit_equal(subject: Subject) -> None:
    """Three steps, state into a new optimizer by name, three more: the same bits as six steps, also in bfloat16."""
    for dtype in ("float32", "bfloat16"):
        straight, broken = Distances(subject, dtype=dtype), Distances(subject, dtype=dtype)
        straight.train(6)
        broken.train(3)
        resumed = Distances(subject, dtype=dtype)
        for name, tensor in resumed.tensors.items():
            tensor.set_value(broken.tensors[name].detach())
        saved = broken.optimizer.state_tensors()
        resumed.optimizer.resumed_at(broken.optimizer.num_updates)
        state = resumed.optimizer.state_tensors()
        ensure_equal(sorted(state), sorted(saved), "names of the state")
        for name, target in state.items():
            target.copy_(saved[name], True)
        resumed.optimizer.restored(state)
        resumed.optimizer.num_updates = broken.optimizer.num_updates
        resumed.train(3)
        _ensure_same(resumed, straight, f"after a resume ({dtype})")


def check_optimizer_rate_zero_changes_nothing(subject: Subject) -> None:
    """A learning rate of 0 leaves every parameter as it is, with and without weight decay."""
    for decay in (0.0, 0.1):
        made, still = Distances(subject, decay=decay), Distances(subject, decay=decay)
        made.train(2, rate=0.0)
        _ensure_same(made, still, "after steps with a learning rate of 0")


def check_optimizer_ignores_the_order(subject: Subject) -> None:
    """The order in which parameters are given changes none of them (<= 1e-6)."""
    made, turned = Distances(subject), Distances(subject, order=lambda names: names[::-1])
    made.train(3)
    turned.train(3)
    _ensure_same(turned, made, "in another order", 1e-6)


def check_optimizer_scales_gradients(subject: Subject) -> None:
    """``scale`` multiplies gradients before anything else is made of them: 0.25 undoes a loss four times as steep."""
    made, steep = Distances(subject), Distances(subject)
    made.train(3)
    steep.train(3, scale=0.25, magnify=4.0)
    _ensure_same(steep, made, "with gradients of four times the size and scale=0.25", 1e-6)


def check_optimizer_applies_factors(subject: Subject) -> None:
    """A parameter's ``factor`` multiplies its learning rate, that of weight decay included."""
    made, faster = Distances(subject, decay=0.1, factor=0.5), Distances(subject, decay=0.1)
    made.train(3, rate=0.02)
    faster.train(3, rate=0.01)
    _ensure_same(made, faster, "with half the factor and twice the learning rate", 1e-6)


def check_optimizer_plans_its_state(subject: Subject) -> None:
    """``ernie_optimizer_bytes`` is what the state of each parameter takes in memory, in float32 and in bfloat16."""
    for dtype in ("float32", "bfloat16"):
        specs = [ParameterSpec(name, shape, dtype, role) for name, (shape, role) in PARAMETERS.items()]
        planned = subject.call("ernie_optimizer_bytes", config=subject.config(), parameters=specs)
        ensure_equal(len(planned), len(specs), "number of answers")
        state = Distances(subject, dtype=dtype).optimizer.kept_tensors()
        for spec, size in zip(specs, planned, strict=True):
            kept = [tensor for name, tensor in state.items() if name.rpartition(".")[0] == spec.name]
            found = sum(int(tensor.size) * int(tensor.element_size()) for tensor in kept)
            ensure_equal(size.state + size.master, found, f"bytes of the state of {spec.name} ({dtype})")


CHECKS = (
    Check(check_optimizer_decreases_a_convex_loss),
    Check(check_optimizer_state_round_trip_is_bit_equal),
    Check(check_optimizer_rate_zero_changes_nothing),
    Check(check_optimizer_ignores_the_order),
    Check(check_optimizer_scales_gradients),
    Check(check_optimizer_applies_factors),
    Check(check_optimizer_plans_its_state),
)
