"""Sessions of a run as a callback of curves gets them, without a run: for tests of the loggers."""

from asked_hosts import hosts_asked
from erniecore_conformance import FakeRun

_SESSION = """
from importlib import import_module
from pathlib import Path
from logged_sessions import log_session, step

name, out = sys.argv[1:]
log_session(import_module(f"erniecore_{name}.plugin").plugin, Path(out), step(1), step(2))
"""


def log_session(plugin, out, *events, done=0, **options):
    """Start, ``events`` and end of a session that begins behind ``done`` steps; ``options``: settings of the callback."""
    run = FakeRun(out, callbacks={plugin.name: plugin.Config(**options)})
    run.step = done
    plugin.ernie_run_start(run=run)
    for event in events:
        plugin.ernie_event(run=run, event=event)
    plugin.ernie_run_end(run=run)


def step(number, **fields):
    """A ``step`` event."""
    return {"event": "step", "time": 1.0, "step": number, "loss": 1.0 / number, "tokens": 9, **fields}


def asked_by_a_session(name, out):
    """What a session of the callback ``name`` with its own defaults asks the network for."""
    return hosts_asked(_SESSION, name, out, home=out.parent)
