"""``python -m erniecore_fastdeploy_server.following COMMAND…``: COMMAND in place of this process, ended by SIGTERM when the
process that started it dies. The kernel's promise outlives the change of program."""

from __future__ import annotations

import os
import signal
import sys

from erniecore.api.launcher import follow_parent

if __name__ == "__main__":
    follow_parent(signal.SIGTERM)
    os.execvp(sys.argv[1], sys.argv[1:])
