"""Made-up distributions for tests of the registry, the settings and the command line: real metadata, real imports."""

import gc
import signal
from collections import Counter

import pytest
from lanes import RUNS
from sites import site as site  # the fixture
from sites import toys as toys
from warmed import warm as warm
from warmed import warm_ranks as warm_ranks

# Started in the background of a shell, or by nohup, this process ignores some signals, and so would every program of a test.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser):
    """``make test-all`` and ``make test-hostile``."""
    parser.addoption("--all-combinations", action="store_true", help="also run what is marked `combination`")
    parser.addoption("--every-attempt", action="store_true", help="tests/hostile: all, not a sample")
    parser.addoption("--hostile-results", help="tests/hostile: the file for the counts of attempts by area")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config, items):
    """The lane of a test follows from where it is, also outside of this directory. Combinations beyond the usual ones are
    left out, unless asked for. Modules with slow tests come first, then the others by their number of tests: several
    workers end together."""
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


def pytest_collection_finish():
    """What was collected stays until the end: let the garbage collector not look at it again and again."""
    gc.collect()
    gc.freeze()
