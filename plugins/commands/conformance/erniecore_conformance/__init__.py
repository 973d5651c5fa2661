"""The conformance kit: named checks for plugins of every kind, in pytest and in ``ernie conform``.

In a plugin's tests::

    from erniecore_conformance import parametrize_checks

    @parametrize_checks("method", "dpo")
    def test_conformance(check):
        check()

A check is a small function whose docstring is the rule. ``Plugin.capabilities`` skips checks with a reason;
``Plugin.expected_failures`` announces checks that must fail. Every check has a mutant in ``mutants/`` that it rejects.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from erniecore_conformance.check import Check as Check
    from erniecore_conformance.checks import checks_for as checks_for
    from erniecore_conformance.pytest_plugin import assert_conforms as assert_conforms
    from erniecore_conformance.pytest_plugin import parametrize_checks as parametrize_checks
    from erniecore_conformance.runner import Outcome as Outcome
    from erniecore_conformance.runner import run_checks as run_checks
    from erniecore_conformance.subjects import Subject as Subject
    from erniecore_conformance.toys.data import collate as collate
    from erniecore_conformance.toys.paddle_lm import toy_model as toy_model
    from erniecore_conformance.toys.run import FakeRun as FakeRun
    from erniecore_conformance.toys.tokenizer import ToyTokenizer as ToyTokenizer

_LAZY = {
    "Check": "check",
    "FakeRun": "toys.run",
    "Outcome": "runner",
    "Subject": "subjects",
    "ToyTokenizer": "toys.tokenizer",
    "assert_conforms": "pytest_plugin",
    "checks_for": "checks",
    "collate": "toys.data",
    "parametrize_checks": "pytest_plugin",
    "run_checks": "runner",
    "toy_model": "toys.paddle_lm",
}
__all__ = [
    "Check",
    "FakeRun",
    "Outcome",
    "Subject",
    "ToyTokenizer",
    "assert_conforms",
    "checks_for",
    "collate",
    "parametrize_checks",
    "run_checks",
    "toy_model",
]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'erniecore_conformance' has no attribute {name!r}")
    return getattr(import_module(f"erniecore_conformance.{_LAZY[name]}"), name)
