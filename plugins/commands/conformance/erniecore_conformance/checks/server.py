"""Checks for servers that need no model: what they refuse, and where they listen by default. Answering requests is
tested by the plugin itself."""

from __future__ import annotations

import tempfile

from erniecore_conformance.check import Check
from erniecore_conformance.expect import NotApplicable, ensure, ensure_raises
from erniecore_conformance.subjects import Subject, run_probe

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
#: Seconds after which a server that should refuse counts as serving.
_LIMIT = 120.0


def _refuses(subject: Subject, directory: str, what: str) -> None:
    answer = run_probe({"action": "serve", "target": subject.target, "directory": directory}, _LIMIT)
    ensure(answer["refused"], f"{what}: {answer['detail']}; expected an ErnieError")


def check_server_refuses_missing_directory(subject: Subject) -> None:
    """A directory that does not exist is an ``ErnieError`` at once."""
    _refuses(subject, "/no/such/directory", "a directory that does not exist")


def check_server_refuses_empty_directory(subject: Subject) -> None:
    """A directory without a model is an ``ErnieError`` at once."""
    with tempfile.TemporaryDirectory() as directory:
        _refuses(subject, directory, "an empty directory")


def check_server_listens_on_loopback(subject: Subject) -> None:
    """``Config.host``, where there is one, is the loopback address by default."""
    host = getattr(subject.config(), "host", None)
    if host is None:
        raise NotApplicable("Config has no field `host`")
    ensure(host in _LOOPBACK, f"listens on {host!r} by default; expected one of {', '.join(_LOOPBACK)}")


def check_server_port_is_checked(subject: Subject) -> None:
    """``Config.port``, where there is one, takes 0 to 65535 only."""
    if "port" not in subject.plugin.Config.model_fields:
        raise NotApplicable("Config has no field `port`")
    subject.config(port=0)
    for port in (-1, 65536):
        ensure_raises(ValueError, lambda p=port: subject.config(port=p), f"port={port}")  # type: ignore[misc]


CHECKS = (
    Check(check_server_refuses_missing_directory, process=True),
    Check(check_server_refuses_empty_directory, process=True),
    Check(check_server_listens_on_loopback),
    Check(check_server_port_is_checked),
)
