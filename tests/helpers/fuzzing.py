"""For ``tests/fuzz``: readers of files, each given made-up ones. ``FUZZ_MINUTES``: how long, others each time. What a reader
fails at is kept in ``tests/fuzz/cases`` as the text of its arguments, and given to it first from then on.
"""

import ast
import functools
import hashlib
import os
import time
from pathlib import Path

from hypothesis import HealthCheck, example, settings

CASES = Path(__file__).parents[1] / "fuzz" / "cases"
MINUTES = float(os.environ.get("FUZZ_MINUTES", "0"))


def fuzzed(examples):
    """For a test of a reader, above ``given``: the kept cases, then ``examples`` more, always the same in ``make test``."""
    often = settings(
        max_examples=200 if MINUTES else examples,
        derandomize=not MINUTES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
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
            try:
                return check(*args, **values)
            except Exception as error:
                if MINUTES:
                    keep(check.__name__, {name: values[name] for name in names}, type(error).__name__)
                raise

        return run

    return decorate


def keep(test, arguments, fault):
    mark = hashlib.sha256(f"{fault} {os.getpid()} {time.strftime('%F')}".encode()).hexdigest()[:8]
    CASES.mkdir(exist_ok=True)
    (CASES / f"{test}-{mark}.txt").write_text(f"{arguments!r}\n", encoding="utf-8", errors="backslashreplace")
