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
    """``warm_client.py SOCKET ARGUMENTS…``; the exit code of the command."""
    address, *arguments = sys.argv[1:]
    request = json.dumps({"arguments": arguments, "cwd": os.getcwd(), "environ": dict(os.environ), "code": ""}).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [len(request).to_bytes(8, "big")], [0, 1, 2])
        connection.sendall(request)
        with connection.makefile("r", encoding="utf-8") as answers:
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
