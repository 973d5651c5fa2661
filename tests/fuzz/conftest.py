"""How long a reader is tried, and a tiny model directory for those of tokenizers."""

import time

import pytest
from fuzzing import MINUTES, until
from talker import talker as talker  # the fixture


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item):
    """A reader is called again, with other files, until its minutes are over."""
    end = time.monotonic() + 60 * MINUTES
    if MINUTES:
        until(item.originalname, end)
    result = yield
    while hasattr(getattr(item, "obj", None), "hypothesis") and time.monotonic() < end:
        item.runtest()
    return result
