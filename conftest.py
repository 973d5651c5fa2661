"""Keeps byte code in the virtual environment, whatever the shell says: a process that compiles paddle's sources takes three
times as long to start, and the tests start many.
"""

import os
import sys
from pathlib import Path

sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(Path(sys.prefix) / "pycache")
