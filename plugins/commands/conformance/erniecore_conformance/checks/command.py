"""Checks for further subcommands: their help and their errors."""

from __future__ import annotations

from typing import Any

from erniecore_conformance.check import Check
from erniecore_conformance.exercise import command_call
from erniecore_conformance.expect import ensure, ensure_equal
from erniecore_conformance.subjects import Subject, run_probe


def _help(subject: Subject) -> dict[str, Any]:
    return run_probe({"action": "help", "target": subject.target})


def check_command_shows_help(subject: Subject) -> None:
    """``--help`` ends with status 0 and says what the command is for."""
    code, text = command_call(subject, "--help")
    ensure_equal(code, 0, "status of --help")
    first_words = subject.plugin.summary.split()[:3]
    ensure(" ".join(first_words) in " ".join(text.split()), f"--help does not say {subject.plugin.summary!r}")


def check_command_help_is_light(subject: Subject) -> None:
    """``--help`` does not import paddle."""
    ensure(not _help(subject)["paddle"], "--help imports paddle")


def check_command_refuses_unknown_options(subject: Subject) -> None:
    """An unknown option ends with status 2."""
    code, _ = command_call(subject, "--no-such-option-anywhere")
    ensure_equal(code, 2, "status of an unknown option")


CHECKS = (
    Check(check_command_shows_help),
    Check(check_command_help_is_light, process=True),
    Check(check_command_refuses_unknown_options),
)
