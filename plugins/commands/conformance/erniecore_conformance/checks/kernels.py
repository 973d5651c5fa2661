"""Checks for sets of kernels: what they say of themselves, and what they load where they can run."""

from __future__ import annotations

from collections.abc import Mapping

from erniecore.api import Plugin
from erniecore.api.kernels import OPERATORS, Kernel, KernelSet
from erniecore_conformance.check import Check
from erniecore_conformance.expect import CheckFailed, NotApplicable, ensure, ensure_equal
from erniecore_conformance.subjects import Subject


def _set(subject: Subject) -> KernelSet:
    plugin: Plugin = subject.plugin
    if not isinstance(plugin, KernelSet):
        raise CheckFailed("the plugin object is no instance of erniecore.api.kernels.KernelSet")
    return plugin


def check_kernels_say_what_they_are_for(subject: Subject) -> None:
    """Devices are named, operators are those of the table, and each has the dtypes that it takes."""
    kernels = _set(subject)
    ensure(bool(kernels.devices), "devices is empty: no run would use the kernels")
    ensure(bool(kernels.operators), "operators is empty")
    for operator, dtypes in kernels.operators.items():
        ensure(operator in OPERATORS, f"no operator is called {operator!r}; operators: {', '.join(OPERATORS)}")
        ensure(isinstance(dtypes, tuple) and bool(dtypes), f"operator {operator} names no dtypes: {dtypes!r}")


def check_kernels_say_why_they_cannot_run(subject: Subject) -> None:
    """``fault`` is one line of text, empty where the kernels can run, and the same whenever it is asked."""
    kernels = _set(subject)
    reason = kernels.fault()
    ensure(isinstance(reason, str) and "\n" not in reason, f"fault gives {reason!r}, not a line of text")
    ensure_equal(kernels.fault(), reason, "fault, asked again")


def check_kernels_have_the_functions_of_their_operators(subject: Subject) -> None:
    """``load`` gives kernels for functions of the operator, at least for one, each with ``run`` and ``supports``."""
    kernels = _set(subject)
    if "cpu" not in kernels.devices or kernels.fault():
        raise NotApplicable(kernels.fault() or "not for the CPU")
    import paddle  # noqa: F401 - kernels are loaded when it is there

    for operator in kernels.operators:
        found: Mapping[str, Kernel] = kernels.load(operator, lambda: 1)
        ensure(bool(found), f"operator {operator}: no kernel is loaded")
        foreign = sorted(set(found) - set(OPERATORS[operator]))
        ensure(not foreign, f"operator {operator}: {', '.join(foreign)} belongs to another operator, or to none")
        for name, kernel in found.items():
            for member in ("run", "supports"):
                ensure(callable(getattr(kernel, member, None)), f"{name}: {member} cannot be called")


CHECKS = (
    Check(check_kernels_say_what_they_are_for),
    Check(check_kernels_say_why_they_cannot_run),
    Check(check_kernels_have_the_functions_of_their_operators),
)
