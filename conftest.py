"""Keeps byte code in the virtual environment, whatever the shell says: a process that compiles paddle's sources takes three
times as long to start, and the tests start many. And what `make` can ask of any tests, those of the core and of plugins: lanes,
all combinations, all attempts. A lane reads only the files that it has tests in.
"""

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(Path(sys.prefix) / "pycache")

# Started in the background of a shell, or by nohup, this process ignores some signals, and so would every program of a test.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_configure() -> None:
    """Whichever test imports paddle first: this process computes as runs do, whose variables choose the code of MKL."""
    from erniecore.builtin.cpu import CpuConfig, plugin
    from erniecore.engine.launch import apply_environment
    from erniecore.types.run import Cluster

    apply_environment(plugin.ernie_open_device(CpuConfig(), Cluster()).environment())


def pytest_addoption(parser: pytest.Parser) -> None:
    """``make test-all`` and ``make test-hostile``."""
    parser.addoption("--all-combinations", action="store_true", help="also run what is marked `combination`")
    parser.addoption("--every-attempt", action="store_true", help="tests/hostile: all, not a sample")
    parser.addoption("--hostile-results", help="tests/hostile: the file for the counts of attempts by area")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Whether a file has no test that ``-m`` can choose: which of them are `runs` follows from their path alone."""
    chosen = config.option.markexpr.split()
    if collection_path.suffix != ".py" or "runs" not in chosen[:2] or config.rootpath != Path(__file__).parent:
        return None
    from lanes import RUNS

    is_run = collection_path.relative_to(config.rootpath).as_posix().startswith(RUNS)
    return True if is_run == (chosen[0] == "not") else None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """The lane of a test follows from where it is. Combinations beyond the usual ones are left out, unless asked for. Modules
    with slow tests come first, then the others by their number of tests: several workers end together."""
    if config.rootpath == Path(__file__).parent:  # tests of an example that run elsewhere do not see tests/helpers
        from lanes import RUNS

        for item in items:
            if item.nodeid.startswith(RUNS):
                item.add_marker("runs")
    yield  # here pytest selects by marker
    if not config.getoption("--all-combinations"):
        further = [item for item in items if item.get_closest_marker("combination")]
        config.hook.pytest_deselected(items=further)
        items[:] = [item for item in items if not item.get_closest_marker("combination")]
    slow, count = set(), Counter(item.path for item in items)
    slow.update(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: (item.path not in slow, 0 if item.path in slow else -count[item.path], item.path))


def pytest_collection_finish() -> None:
    """What was collected stays until the end: let the garbage collector not look at it again and again."""
    gc.collect()
    gc.freeze()
