"""Outcomes: passed, failed, skipped with a reason, expected failures that must fail."""

import subprocess
import sys

import pytest

from erniecore.testing.expect import NotApplicable, ensure, ensure_bits, ensure_close, ensure_raises
from erniecore.testing.pytest_plugin import BoundCheck
from erniecore.testing.runner import Check, run_check
from erniecore.testing.subjects import Subject
from erniecore.testing.toys.others import ToyServerPlugin


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
    outcome = run_check(Check(check_server_fails, needs="wings"), subject())
    assert outcome.status == "skipped"
    assert "wings" in outcome.detail


def test_capability_can_exclude_a_check():
    excluded = subject(capabilities=frozenset({"lossy"}))
    assert run_check(Check(check_server_fails, unless="lossy"), excluded).status == "skipped"
    assert run_check(Check(check_server_fails, unless="lossy"), subject()).status == "failed"


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
    bound = BoundCheck("server", "toy", "erniecore.testing.toys.others:server", Check(function))
    with pytest.raises(outcome):
        bound()


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
        "import sys, erniecore.testing.pytest_plugin\n"
        "found = {'paddle', 'numpy', 'pydantic', 'typer'} & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
