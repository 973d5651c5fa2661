"""pytest plugin of the conformance kit: ``parametrize_checks`` and fixtures with toy objects. Imports nothing heavy
before a test asks for it, because pytest loads it wherever erniecore is installed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from erniecore.testing.runner import Check
    from erniecore.testing.subjects import Subject
    from erniecore.testing.toys.paddle_lm import ToyLM
    from erniecore.testing.toys.tokenizer import ToyTokenizer


def parametrize_checks(kind: str, name: str, *, target: str = "") -> pytest.MarkDecorator:
    """Run the decorated test once per check of an installed plugin; its argument ``check`` is called to run it.

    Args:
        kind: a key of ``kinds.KINDS``.
        name: the plugin's name (``distribution:name`` where two distributions have it).
        target: ``package.module:attribute`` of a plugin that is importable but not installed.
    """
    from erniecore.testing.checks import checks_for

    cases = [pytest.param(BoundCheck(kind, name, target, check), id=check.name) for check in checks_for(kind)]
    return pytest.mark.parametrize("check", cases)


class BoundCheck:
    """One check of one plugin; calling it passes, fails, skips or expects the failure in pytest's terms."""

    def __init__(self, kind: str, name: str, target: str, check: Check) -> None:
        self.kind, self.name, self.target, self.check = kind, name, target, check

    def __repr__(self) -> str:
        return f"<check {self.check.name} of {self.kind} {self.name}>"

    def __call__(self) -> None:
        """Run the check; the outcome becomes pytest's."""
        from erniecore.testing.runner import run_check

        outcome = run_check(self.check, _subject(self.kind, self.name, self.target))
        if outcome.status == "failed":
            pytest.fail(f"{outcome.check}: {outcome.detail}\nrule: {self.check.function.__doc__}", pytrace=False)
        if outcome.status == "skipped":
            pytest.skip(outcome.detail)
        if outcome.status == "expected":
            pytest.xfail(outcome.detail)


@cache
def _subject(kind: str, name: str, target: str) -> Subject:
    """One subject per plugin and process, so that its checks share one probe."""
    from erniecore.testing.subjects import Subject

    return Subject.at(target, kind=kind, name=name) if target else Subject.installed(kind, name)


@pytest.fixture
def toy_tokenizer() -> ToyTokenizer:
    """A byte-level tokenizer with a chat template."""
    from erniecore.testing.toys.tokenizer import ToyTokenizer

    return ToyTokenizer()


@pytest.fixture
def toy_policy() -> ToyLM:
    """A tiny language model with the weights of seed 0."""
    from erniecore.testing.toys.paddle_lm import toy_model

    return toy_model()


@pytest.fixture
def toy_batch() -> Any:
    """A function (encoder) -> batch of eight toy records, one per row."""
    from erniecore.testing.toys.data import collate, toy_records

    return lambda encoder: collate([[s] for r in toy_records(encoder.accepts) for s in encoder.encode(r)])


@pytest.fixture(params=["reference", "kernels"])
def each_kernel(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs the test twice on the CPU: with the reference operators, and with the kernels that are installed."""
    from erniecore import kernels
    from erniecore.ops._parallel import num_workers

    chosen = kernels.REFERENCES if request.param == "reference" else kernels.choose("cpu", {})
    if request.param == "kernels" and not chosen.sets:
        pytest.skip("no kernels are installed")
    kernels.use(chosen, num_workers)
    yield
    kernels.use(kernels.REFERENCES, num_workers)
