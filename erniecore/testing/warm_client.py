"""Stands in for ``ernie`` where ``warm.py`` serves: asks for the command, passes signals on, and ends as it ends. Runs as a
script with ``-I -S`` and imports nothing of erniecore: its start is what is to be saved.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys


def main() -> int:
    """``warm_client.py SOCKET WORDS…``; the exit code of the command."""
    address, *words = sys.argv[1:]
    request = json.dumps({"words": words, "cwd": os.getcwd(), "environ": dict(os.environ)}).encode()
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(address)
        socket.send_fds(line, [len(request).to_bytes(8, "big")], [0, 1, 2])
        line.sendall(request)
        with line.makefile("r", encoding="utf-8") as answers:
            pid = int(answers.readline())
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda number, _: os.kill(pid, number))
            return int(answers.readline())


if __name__ == "__main__":
    code = main()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)
