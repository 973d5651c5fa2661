"""The table of conformance checks: kind -> checks. One module per kind, no registration by import."""

from __future__ import annotations

from erniecore.api import nearest
from erniecore_conformance.check import Check
from erniecore_conformance.checks import (
    adapter,
    callback,
    command,
    corpus,
    device,
    encoder,
    every,
    exporter,
    forecaster,
    importer,
    kernels,
    launcher,
    method,
    model,
    model_media,
    model_state,
    optimizer,
    parallel,
    parallel_ranks,
    quantizer,
    reader,
    reward,
    rows,
    schedule,
    server,
    training,
)
from erniecore_conformance.expect import ensure
from erniecore_conformance.subjects import Subject


def check_every_expected_failures_are_real(subject: Subject) -> None:
    """``expected_failures`` names existing checks, each with a reason."""
    names = [check.name for check in checks_for(subject.kind)]
    for name, reason in subject.plugin.expected_failures.items():
        guess = nearest(name, names)
        ensure(name in names, f"expected_failures: no check {name!r}" + (f"; did you mean {guess!r}?" if guess else ""))
        ensure(bool(reason.strip()), f"expected_failures: {name!r} has no reason")


CHECKS: dict[str, tuple[Check, ...]] = {
    "every": (*every.CHECKS, Check(check_every_expected_failures_are_real)),
    "device": device.CHECKS,
    "parallel": (*parallel.CHECKS, *parallel_ranks.CHECKS),
    "model": (*model.CHECKS, *model_state.CHECKS, *model_media.CHECKS),
    "adapter": adapter.CHECKS,
    "quantizer": quantizer.CHECKS,
    "method": (*method.CHECKS, *training.CHECKS, *encoder.CHECKS),
    "optimizer": optimizer.CHECKS,
    "format": rows.CHECKS,
    "reader": reader.CHECKS,
    "corpus": corpus.CHECKS,
    "reward": reward.CHECKS,
    "importer": importer.CHECKS,
    "exporter": exporter.CHECKS,
    "schedule": schedule.CHECKS,
    "launcher": launcher.CHECKS,
    "kernels": kernels.CHECKS,
    "server": server.CHECKS,
    "callback": callback.CHECKS,
    "forecaster": forecaster.CHECKS,
    "command": command.CHECKS,
}


def checks_for(kind: str) -> tuple[Check, ...]:
    """The checks of every kind, then those of ``kind``."""
    return (*CHECKS["every"], *CHECKS[kind])
