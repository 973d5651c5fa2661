"""Processes that end with the one that started them."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from erniecore_system import lifeline
from processes import await_end

#: starts a child process that follows it and cannot be asked to end, and says its id
PARENT = """
import os, subprocess, sys
from erniecore_system import lifeline
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], env={**os.environ, **lifeline.variables()})
print(child.pid, flush=True)
sys.stdin.read()
"""
CHILD = """
import signal, sys, time
from erniecore_system import lifeline
signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
lifeline.follow()
{then}
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


def start(code):
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", PARENT, code], stdin=pipe, stdout=pipe, text=True)


@pytest.mark.parametrize(("then", "said"), [("", ""), ("lifeline.save_first(0.3, 0.05)", "asked\n")])
def test_a_process_ends_with_the_one_that_started_it(then, said):
    """At once, or after it was asked to and had its time."""
    with start(CHILD.format(then=then)) as process:
        lines = {process.stdout.readline(), process.stdout.readline()}
        child = int((lines - {"ready\n"}).pop())
        process.kill()
        rest = process.stdout.read()  # ends when the child process, which prints there, has ended
    assert rest == said
    await_end([child])


@pytest.mark.parametrize(("then", "said"), [("", ""), ("lifeline.save_first(0.3, 0.05)", "asked\n")])
def test_a_process_that_is_stopped_ends_too(then, said):
    with start(CHILD.format(then=then)) as process:
        lines = {process.stdout.readline(), process.stdout.readline()}
        child = int((lines - {"ready\n"}).pop())
        os.kill(child, signal.SIGSTOP)
        while "State:\tT" not in Path(f"/proc/{child}/status").read_text():
            pass
        process.kill()
        try:
            assert process.stdout.read() == said
            await_end([child])
        finally:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def test_a_process_whose_parent_is_gone_already_ends_at_once():
    pid = os.fork()
    if not pid:
        lifeline.follow(signal.SIGKILL, parent=os.getppid() + 100_000)
        os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_without_a_parent_to_follow_nothing_happens(monkeypatch):
    monkeypatch.delenv(lifeline.PARENT, raising=False)
    lifeline.follow()
    lifeline.save_first()
