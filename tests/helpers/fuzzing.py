"""For ``tests/fuzz``: readers of files, each given made-up ones. ``FUZZ_MINUTES``: how long, others each time. What a reader
fails at is kept in ``tests/fuzz/cases`` as the text of its arguments, and given to it first from then on.
"""

import ast
import functools
import hashlib
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from hypothesis import HealthCheck, Phase, example, settings

CASES = Path(__file__).parents[1] / "fuzz" / "cases"
MINUTES = float(os.environ.get("FUZZ_MINUTES", "0"))
#: what explains a failure tries hundreds of files more; the smallest one is what is kept
PHASES = tuple(phase for phase in Phase if phase is not Phase.explain)
#: seconds after which a reader counts as one that never returns; other programs may use the machine meanwhile
PATIENCE = 300
#: when the minutes of the current test are over; the tests that have failed, of which hypothesis looks for the smallest file
_ends: dict[str, float] = {}
_failed: set[str] = set()


def until(test, end):
    """From ``end`` on (of ``time.monotonic``) the readers of ``test`` are given nothing more, but to make a failure smaller."""
    _ends[test] = end


def fuzzed(examples):
    """For a test of a reader, above ``given``: the kept cases, then ``examples`` more, always the same in ``make test``."""
    often = settings(
        max_examples=200 if MINUTES else examples,
        derandomize=not MINUTES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=PHASES,
    )

    def decorate(test):
        for file in sorted(CASES.glob(f"{test.__name__}-*.txt")):
            test = example(**ast.literal_eval(file.read_text(encoding="utf-8")))(test)
        return often(test)

    return decorate


def kept(*names):
    """For a test of a reader, below ``given``: the arguments ``names`` with which it fails become a file of ``cases``. While
    hypothesis makes them smaller, they replace each other, so the smallest stays."""

    def decorate(check):
        @functools.wraps(check)
        def run(*args, **values):
            if check.__name__ not in _failed and time.monotonic() > _ends.get(check.__name__, float("inf")):
                return None
            try:
                with _returning():
                    return check(*args, **values)
            except Exception as error:
                _failed.add(check.__name__)
                if MINUTES:
                    keep(check.__name__, {name: values[name] for name in names}, type(error).__name__)
                raise

        return run

    return decorate


@contextmanager
def _returning() -> Iterator[None]:
    """A block that takes longer than :data:`PATIENCE` is a failure too, which names the file."""

    def late(number: int, frame: object) -> NoReturn:
        raise TimeoutError(f"the reader has not returned within {PATIENCE} s")

    if not MINUTES:
        yield
        return
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def keep(test, arguments, fault):
    mark = hashlib.sha256(f"{fault} {os.getpid()} {time.strftime('%F')}".encode()).hexdigest()[:8]
    CASES.mkdir(exist_ok=True)
    (CASES / f"{test}-{mark}.txt").write_text(f"{arguments!r}\n", encoding="utf-8", errors="backslashreplace")
