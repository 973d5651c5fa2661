"""Outcomes: passed, failed, skipped with a reason, expected failures that must fail."""

import subprocess
import sys

import pytest
from erniecore_conformance.check import Check
from erniecore_conformance.expect import NotApplicable, ensure, ensure_bits, ensure_close, ensure_raises
from erniecore_conformance.pytest_plugin import BoundChecks, assert_conforms
from erniecore_conformance.runner import run_check
from erniecore_conformance.subjects import Subject
from erniecore_conformance.toys.others import ToyServerPlugin

from erniecore.api.export import ExporterCapability

TOY = "erniecore_conformance.toys.others:server"


def subject(**members):
    return Subject(type("Plugin", (ToyServerPlugin,), members)(), "server", "toy", "nowhere:plugin")


def check_server_passes(subject):
    """A rule that everybody keeps."""


def check_server_fails(subject):
    """A rule that nobody keeps."""
    ensure(False, "broken")


def check_server_raises(subject):
    """A rule whose test trips over the plugin."""
    raise KeyError("x")


def check_server_says_nothing(subject):
    """A rule about others."""
    raise NotApplicable("about others")


@pytest.mark.parametrize(
    ("function", "status", "detail"),
    [
        (check_server_passes, "passed", ""),
        (check_server_fails, "failed", "broken"),
        (check_server_raises, "failed", "KeyError: 'x'"),
        (check_server_says_nothing, "skipped", "about others"),
    ],
)
def test_outcome(function, status, detail):
    outcome = run_check(Check(function), subject())
    assert (outcome.status, outcome.detail) == (status, detail)


def test_name_and_rule_come_from_the_function():
    check = Check(check_server_fails)
    assert (check.name, check.rule) == ("server_fails", "A rule that nobody keeps.")


def test_missing_capability_skips_with_a_reason():
    outcome = run_check(Check(check_server_fails, needs=ExporterCapability.PACKED), subject())
    assert outcome.status == "skipped"
    assert "'packed'" in outcome.detail


def test_capability_can_exclude_a_check():
    excluded = subject(capabilities=frozenset({ExporterCapability.LOSSY}))
    assert run_check(Check(check_server_fails, unless=ExporterCapability.LOSSY), excluded).status == "skipped"
    assert run_check(Check(check_server_fails, unless=ExporterCapability.LOSSY), subject()).status == "failed"


def test_expected_failure_must_fail():
    expecting = subject(expected_failures={"server_fails": "known", "server_passes": "known"})
    assert run_check(Check(check_server_fails), expecting).status == "expected"
    surprise = run_check(Check(check_server_passes), expecting)
    assert surprise.status == "failed"
    assert "remove it from expected_failures" in surprise.detail


@pytest.mark.parametrize(
    ("function", "outcome"),
    [
        (check_server_fails, pytest.fail.Exception),
        (check_server_says_nothing, pytest.skip.Exception),
    ],
)
def test_outcomes_become_those_of_pytest(function, outcome):
    with pytest.raises(outcome):
        BoundChecks("server", "toy", TOY, (Check(function),))()


def test_checks_together_report_all_failures():
    several = tuple(
        map(Check, (check_server_fails, check_server_says_nothing, check_server_raises, check_server_passes))
    )
    with pytest.raises(pytest.fail.Exception) as caught:
        BoundChecks("server", "toy", TOY, several)()
    text = str(caught.value)
    assert all(
        part in text for part in ("server_fails: broken", "A rule that nobody keeps.", "server_raises: KeyError")
    )
    assert "server_passes" not in text
    assert "server_says_nothing" not in text


def test_checks_together_pass_when_some_say_nothing():
    BoundChecks("server", "toy", TOY, (Check(check_server_says_nothing), Check(check_server_passes)))()


def test_a_misspelled_check_is_not_left_out_in_silence():
    with pytest.raises(AssertionError, match="parallel_is_fats"):
        assert_conforms("parallel", "single", only=["parallel_is_fats"])


def test_nothing_that_is_not_finite_is_close():
    with pytest.raises(AssertionError, match="not finite"):
        ensure_close([float("nan")], [float("nan")], 1.0, "values")


def test_shapes_must_agree():
    with pytest.raises(AssertionError, match="shape"):
        ensure_close([[1.0]], [1.0], 1.0, "values")
    with pytest.raises(AssertionError, match="dtype"):
        ensure_bits([1], [1.0], "values")


def test_another_error_is_not_the_expected_one():
    with pytest.raises(AssertionError, match="raised KeyError"):
        ensure_raises(ValueError, lambda: {}["x"], "a look-up")
    with pytest.raises(AssertionError, match="returned 1"):
        ensure_raises(ValueError, lambda: 1, "a call")


def test_loading_the_pytest_plugin_is_light():
    code = (
        "import sys, erniecore_conformance.pytest_plugin\n"
        "found = {'paddle', 'numpy', 'pydantic', 'typer'} & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
