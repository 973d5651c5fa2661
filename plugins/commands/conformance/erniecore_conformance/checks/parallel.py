"""Checks for parallel strategies in one process; what needs several processes is tested by the plugin itself."""

from __future__ import annotations

from typing import Any

from erniecore.api import ConfigError
from erniecore.api.model import Layout
from erniecore.api.parallel import Cluster, ParallelPlan
from erniecore.api.testing import SingleProcess
from erniecore_conformance.check import Check
from erniecore_conformance.expect import NotApplicable, ensure, ensure_bits, ensure_close, ensure_equal
from erniecore_conformance.subjects import Subject

_LAYOUT = Layout((("embed_tokens.weight", "vocab"), ("*", "replicate")))
_AXES = ("data", "tensor", "pipeline", "expert", "context", "sharding")


def _plan(subject: Subject, cluster: Cluster, **values: Any) -> ParallelPlan:
    plan: ParallelPlan = subject.call(
        "ernie_plan_parallel", config=subject.config(**values), cluster=cluster, shape=None
    )
    return plan


def _parallelized(subject: Subject, model: Any) -> Any:
    """``model`` after the strategy, in one process."""
    plan = _plan(subject, Cluster())
    return subject.call("ernie_parallelize", model=model, layout=_LAYOUT, plan=plan, ranks=SingleProcess())


def _plans(subject: Subject, world: int) -> list[ParallelPlan] | None:
    """One plan per rank, or ``None`` when every rank refuses."""
    plans, refused = [], 0
    for rank in range(world):
        try:
            plans.append(_plan(subject, Cluster(rank=rank, world_size=world, local_rank=rank)))
        except ConfigError:
            refused += 1
    ensure(refused in (0, world), f"{refused} of {world} ranks refuse the plan that the others accept")
    return plans or None


def check_parallel_alone_is_one(subject: Subject) -> None:
    """One process: every degree is 1, data rank 0 of 1."""
    plan = _plan(subject, Cluster())
    ensure(all(d == 1 for d in plan.degrees.values()), f"degrees of one process are {dict(plan.degrees)}")
    ensure_equal((plan.data_rank, plan.data_size), (0, 1), "data rank and size of one process")


def check_parallel_axes_are_known(subject: Subject) -> None:
    """Degrees are positive ints of known axes."""
    for world in (1, 2, 4):
        for plan in _plans(subject, world) or ():
            for axis, degree in plan.degrees.items():
                ensure(axis in _AXES, f"unknown axis {axis!r}; known: {', '.join(_AXES)}")
                ensure(isinstance(degree, int) and degree >= 1, f"degree of {axis} is {degree!r}")


def check_parallel_shares_data_evenly(subject: Subject) -> None:
    """With 1, 2, 4 and 8 processes: all agree on the plan, and every data rank has equally many of them, or all refuse
    with a ``ConfigError``."""
    for world in (1, 2, 4, 8):
        plans = _plans(subject, world)
        if plans is None:
            continue
        sizes = {(plan.data_size, tuple(sorted(plan.degrees.items()))) for plan in plans}
        ensure(len(sizes) == 1, f"{world} processes: ranks disagree on the plan: {sizes}")
        size = plans[0].data_size
        ensure(size >= 1 and world % size == 0, f"{world} processes cannot form {size} data ranks")
        ranks = sorted(plan.data_rank for plan in plans)
        ensure_equal(ranks, [r for r in range(size) for _ in range(world // size)], f"data ranks of {world} processes")


def check_parallel_refuses_illegal_degrees(subject: Subject) -> None:
    """A degree that does not divide the number of processes, or more processes than a plan can use, is a
    ``ConfigError`` that names a key of ``parallel``."""
    fields = [axis for axis in _AXES if axis in type(subject.config()).model_fields]
    cases: list[tuple[int, dict[str, int]]] = [(2, {axis: 7}) for axis in fields] or [(7919, {})]
    for world, values in cases:
        try:
            plan = _plan(subject, Cluster(world_size=world), **values)
        except ConfigError as error:
            keys = [problem.key for problem in error.problems]
            ensure(all(k == "parallel" or k.startswith("parallel.") for k in keys), f"ConfigError names {keys}")
        except ValueError as error:
            raise AssertionError(f"{values or world}: raised {type(error).__name__}, expected ConfigError") from error
        else:
            ensure(not values and plan.data_size == world, f"{world} processes with {values} gave {plan}")


def check_parallel_alone_keeps_the_model(subject: Subject) -> None:
    """One process: the parallelized model has the same parameters and logits (<= 1e-6)."""
    from erniecore_conformance.toys.compute import logits, random_ids
    from erniecore_conformance.toys.paddle_lm import toy_model

    ids, model = random_ids(2, 9, 260), toy_model()
    names, before = sorted(n for n, _ in model.named_parameters()), logits(model, ids)
    parallel = _parallelized(subject, model)
    ensure_equal(sorted(n for n, _ in parallel.named_parameters()), names, "parameter names")
    ensure_close(logits(parallel, ids), before, 1e-6, "logits")


def check_parallel_alone_trains_the_same(subject: Subject) -> None:
    """One process: losses of three steps and the weights after them are those of the plain model, bit for bit."""
    from erniecore_conformance.toys.compute import random_ids, sgd_steps, weights
    from erniecore_conformance.toys.paddle_lm import toy_model

    ids, plain = random_ids(2, 9, 260), toy_model()
    parallel = _parallelized(subject, toy_model())
    expected, found = (sgd_steps(model, ids, steps=3, learning_rate=0.1) for model in (plain, parallel))
    ensure_equal(found, expected, "losses of three steps")
    theirs = weights(parallel)
    for name, value in weights(plain).items():
        if name not in theirs:
            raise NotApplicable(f"{name} is stored under another name (see parallel_alone_keeps_the_model)")
        ensure_bits(theirs[name], value, f"{name} after three steps")


CHECKS = (
    Check(check_parallel_alone_is_one),
    Check(check_parallel_axes_are_known),
    Check(check_parallel_shares_data_evenly),
    Check(check_parallel_refuses_illegal_degrees),
    Check(check_parallel_alone_keeps_the_model),
    Check(check_parallel_alone_trains_the_same),
)
