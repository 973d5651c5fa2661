"""What a new process asks the network for, and where it connects to: for tests of "nothing without being asked"."""

import os
import subprocess
import sys

_HEARD = """
import os
import sys

def heard(event, arguments):
    if event == "socket.getaddrinfo":
        os.write(1, f"asked for {arguments[0]}\\n".encode())
    elif event == "socket.connect" and isinstance(arguments[1], tuple):
        os.write(1, f"connected to {arguments[1][0]}\\n".encode())

sys.addaudithook(heard)
"""
#: with these, libraries do not report their use, whatever they were told
_TESTING = ("PYTEST_CURRENT_TEST", "CI", "GITHUB_ACTIONS", "DO_NOT_TRACK", "DISABLE_TELEMETRY", "HF_HUB_OFFLINE")


def hosts_asked(code, *arguments, home, environ=None):
    """Each address that ``code`` looks up and each that it connects to, a line per time. ``arguments``: behind ``sys.argv[0]``.
    ``home``: in place of the user's, so that nothing is known from before. ``environ``: None takes a variable away.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in _TESTING}
    own = {"PYTHONPATH": os.path.dirname(__file__), "HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    environment = {**inherited, **own, **(environ or {})}
    done = subprocess.run(
        [sys.executable, "-c", _HEARD + code + "\nos.write(1, b'done\\n')\n", *map(str, arguments)],
        env={name: value for name, value in environment.items() if value is not None},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert "done" in lines, done.stderr
    return [line for line in lines if line.startswith(("asked for ", "connected to "))]
