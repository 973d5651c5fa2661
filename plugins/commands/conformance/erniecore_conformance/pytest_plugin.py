"""pytest plugin of the conformance kit: ``parametrize_checks`` and fixtures with toy objects. Imports nothing heavy
before a test asks for it, because pytest loads it wherever erniecore is installed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from erniecore_conformance.check import Check
    from erniecore_conformance.subjects import Subject
    from erniecore_conformance.toys.paddle_lm import ToyLM
    from erniecore_conformance.toys.tokenizer import ToyTokenizer


def parametrize_checks(kind: str, name: str, *, target: str = "") -> pytest.MarkDecorator:
    """Run the decorated test on all checks of an installed plugin; its argument ``check`` is called to run them.

    The rules of every kind (names, settings, signatures of hooks) are one case, ``every``, which reports all that are
    broken; each further check is a case of its own.

    Args:
        kind: a key of ``kinds.KINDS``.
        name: the plugin's name (``distribution:name`` where two distributions have it).
        target: ``package.module:attribute`` of a plugin that is importable but not installed.
    """
    from erniecore_conformance.checks import CHECKS

    cases = [pytest.param(BoundChecks(kind, name, target, CHECKS["every"]), id="every")]
    cases += [pytest.param(BoundChecks(kind, name, target, (check,)), id=check.name) for check in CHECKS[kind]]
    return pytest.mark.parametrize("check", cases)


def assert_conforms(kind: str, name: str, *, only: Collection[str] = ()) -> None:
    """Run the checks of an installed plugin in one test; fails with all rules that are broken.

    Args:
        only: names of checks beside those of every kind; empty for all.
    """
    from erniecore_conformance.checks import CHECKS

    unknown = set(only) - {check.name for check in CHECKS[kind]}
    assert not unknown, f"no such checks of kind {kind}: {sorted(unknown)}"
    own = tuple(check for check in CHECKS[kind] if not only or check.name in only)
    BoundChecks(kind, name, "", (*CHECKS["every"], *own))()


class BoundChecks:
    """Checks of one plugin; calling it passes, fails, skips or expects the failure in pytest's terms.

    Several checks pass when none fails; they are skipped, or expected to fail, when all of them are.
    """

    def __init__(self, kind: str, name: str, target: str, checks: tuple[Check, ...]) -> None:
        self.kind, self.name, self.target, self.checks = kind, name, target, checks

    def __repr__(self) -> str:
        return f"<checks {', '.join(check.name for check in self.checks)} of {self.kind} {self.name}>"

    def __call__(self) -> None:
        """Run the checks; their outcomes become pytest's."""
        from erniecore_conformance.runner import run_check

        subject = _subject(self.kind, self.name, self.target)
        outcomes = [run_check(check, subject) for check in self.checks]
        failed = [
            f"{outcome.check}: {outcome.detail}\nrule: {check.function.__doc__}"
            for check, outcome in zip(self.checks, outcomes, strict=True)
            if outcome.status == "failed"
        ]
        details = "; ".join(dict.fromkeys(outcome.detail for outcome in outcomes if outcome.detail))
        if failed:
            pytest.fail("\n\n".join(failed), pytrace=False)
        if all(outcome.status == "skipped" for outcome in outcomes):
            pytest.skip(details)
        if all(outcome.status == "expected" for outcome in outcomes):
            pytest.xfail(details)


@cache
def _subject(kind: str, name: str, target: str) -> Subject:
    """One subject per plugin and process, so that its checks share one probe."""
    from erniecore_conformance.subjects import Subject

    return Subject.at(target, kind=kind, name=name) if target else Subject.installed(kind, name)


@pytest.fixture
def toy_tokenizer() -> ToyTokenizer:
    """A byte-level tokenizer with a chat template."""
    from erniecore_conformance.toys.tokenizer import ToyTokenizer

    return ToyTokenizer()


@pytest.fixture
def toy_policy() -> ToyLM:
    """A tiny language model with the weights of seed 0."""
    from erniecore_conformance.toys.paddle_lm import toy_model

    return toy_model()


@pytest.fixture
def toy_batch() -> Any:
    """A function (encoder) -> batch of eight toy records, one per row."""
    from erniecore_conformance.toys.data import collate, toy_records

    return lambda encoder: collate([[s] for r in toy_records(encoder.accepts) for s in encoder.encode(r)])


@pytest.fixture(params=["reference", "kernels"])
def each_kernel(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs the test twice on the CPU: with the reference operators, and with the kernels that are installed."""
    from erniecore.api.testing import using_kernels

    with using_kernels("cpu", reference=request.param == "reference") as sets:
        if request.param == "kernels" and not sets:
            pytest.skip("no kernels are installed")
        yield
