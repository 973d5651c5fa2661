"""Keeps byte code in the virtual environment, whatever the shell says: a process that compiles paddle's sources takes three
times as long to start, and the tests start many. And a lane reads only the files that it has tests in.
"""

import os
import sys
from pathlib import Path

import pytest

sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(Path(sys.prefix) / "pycache")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Whether a file has no test that ``-m`` can choose: which of them are `runs` follows from their path alone."""
    chosen = config.option.markexpr.split()
    if collection_path.suffix != ".py" or "runs" not in chosen[:2]:
        return None
    from lanes import RUNS  # of tests/helpers, which tests of an example that run elsewhere do not see

    is_run = collection_path.relative_to(config.rootpath).as_posix().startswith(RUNS)
    return True if is_run == (chosen[0] == "not") else None
