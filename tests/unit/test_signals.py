"""What signals make of errors, and of an import of paddle."""

import os
import signal
import subprocess
import sys

import pytest

from erniecore import signals
from erniecore.errors import ConfigError, DeviceUnavailable, Exit
from erniecore.signals import InterruptedTwice, Preempted, outcome


def turned(cause, *errors):
    """``cause`` as libraries hand it on: each error raised while the one before was handled, some of them ``from`` it."""
    for number, error in enumerate(errors):
        try:
            try:
                raise cause
            except BaseException as caught:
                raise error from (caught if number % 2 else None)
        except BaseException as caught:
            cause = caught
    return cause


@pytest.mark.parametrize(
    ("error", "words", "code", "text"),
    [
        (KeyboardInterrupt(), ["run", "x.yaml"], Exit.PREEMPTED, "interrupted before the first step"),
        (Preempted(signal.SIGTERM), ["run"], Exit.PREEMPTED, "stopped by SIGTERM before"),
        (Preempted(signal.SIGHUP), ["serve"], 129, "stopped by SIGHUP"),
        (KeyboardInterrupt(), ["chat"], 130, "interrupted"),
        (InterruptedTwice(), ["run"], Exit.INTERRUPTED, "the same command continues"),
        (turned(Preempted(signal.SIGTERM), ImportError("initialization failed")), ["eval"], 143, "SIGTERM"),
        (turned(KeyboardInterrupt(), ImportError(), DeviceUnavailable("no paddle")), ["run"], 75, "starts again"),
        (turned(InterruptedTwice(), Preempted(signal.SIGINT)), ["run"], Exit.INTERRUPTED, "ended at once"),
    ],
)
def test_exit_codes(error, words, code, text):
    found, said = outcome(error, words)
    assert found == code
    assert text in said


def test_other_errors_are_no_signals():
    assert outcome(turned(OSError(), ConfigError.at("a.b", "wrong")), ["run"]) is None


#: two signals that come where Python drops what is raised: in a callback of a weak reference, and in a finalizer. A third
#: argument is for how many seconds the thread that starts then keeps the one that waits for it
DROPPED = """
import os, signal, sys, threading, time, weakref
from erniecore import signals

start = threading.Thread.start

def slow(thread):
    start(thread)
    time.sleep(float(sys.argv[3]))

threading.Thread.start = slow

class Dropped:
    def __del__(self):
        come("del")

def come(where):
    if where == sys.argv[2]:
        os.kill(os.getpid(), int(sys.argv[1]))
        for _ in range(1000):
            pass

signals.install()
made = Dropped()
seen = weakref.ref(made, lambda _: come("ref"))
try:
    del made
    time.sleep(60)
except (signals.Preempted, KeyboardInterrupt) as error:
    print(signals.outcome(error, ["run"]))
"""


@pytest.mark.parametrize("slow", [0, 0.1])
@pytest.mark.parametrize("where", ["ref", "del"])
@pytest.mark.parametrize(("number", "text"), [(signal.SIGTERM, "stopped by SIGTERM"), (signal.SIGINT, "interrupted")])
def test_a_signal_that_python_would_drop_comes_again(number, text, where, slow):
    words = [sys.executable, "-c", DROPPED, str(int(number)), where, str(slow)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert f"(75, '{text} before the first step" in done.stdout
    assert (done.returncode, done.stderr) == (0, "")


def test_other_errors_in_finalizers_are_shown():
    text = "from erniecore import signals; signals.install()\nclass A:\n    def __del__(self):\n        1 / 0\nA()"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert "ZeroDivisionError" in done.stderr


#: as paddle: a library that takes SIGTERM, and is asked to end while it is imported
LIBRARY = """
import os, signal, sys
sys.imported.append(__name__)
signal.signal(signal.SIGTERM, lambda *_: sys.imported.append("dump"))
NOW
try:
    import taker_first
except Exception:
    pass
import taker_second
"""

#: to this thread: others, which earlier tests have left, hold nothing back
AT_ONCE = "import threading\nsignal.pthread_kill(threading.get_ident(), signal.SIGTERM)"


@pytest.fixture
def library(tmp_path, monkeypatch):
    """``library(text)``: ``import taker`` runs what paddle does, with ``text`` in the module that it imports first, and
    ``now`` where its handler has just taken the place of ours."""
    monkeypatch.delitem(sys.modules, "paddle.base.libpaddle", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "imported", [], raising=False)

    def write(text, now=""):
        (tmp_path / "taker.py").write_text(LIBRARY.replace("NOW", now))
        (tmp_path / "taker_first.py").write_text(f"import os, signal, sys\nsys.imported.append(__name__)\n{text}\n")
        (tmp_path / "taker_second.py").write_text("import sys\nsys.imported.append(__name__)\n")

    yield write
    for name in ("taker", "taker_first", "taker_second"):
        sys.modules.pop(name, None)


def import_it():
    with signals.guarding_import():
        import taker  # noqa: F401


@pytest.fixture
def preempted():
    """Our handlers, as a process of ours has them."""
    before = {n: signal.getsignal(n) for n in signals.SIGNALS}

    def ours(number, frame):
        raise Preempted(number)

    for each in signals.SIGNALS:
        signal.signal(each, ours)
    yield ours
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_an_import_at_the_next_module_and_is_ours(library, preempted, number):
    library(f"os.kill(os.getpid(), {int(number)})\nimport taker_third")
    with pytest.raises(Preempted, match=number.name):
        import_it()
    assert sys.imported == ["taker", "taker_first"]
    assert signal.getsignal(number) is preempted


def test_a_signal_while_the_library_has_taken_it_is_ours(library, preempted):
    library("", now=AT_ONCE)
    with pytest.raises(Preempted, match="SIGTERM"):
        import_it()
    assert sys.imported == ["taker"]
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_what_the_library_takes_is_ignored_again(library):
    library("", now=AT_ONCE)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        import_it()
        assert sys.imported == ["taker", "taker_first", "taker_second"]
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_without_a_signal_everything_is_imported_and_the_handlers_are_back(library):
    library("")
    before = signal.getsignal(signal.SIGTERM)
    import_it()
    assert sys.imported == ["taker", "taker_first", "taker_second"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_second_interrupt_ends_an_import_at_once(library):
    library("os.kill(os.getpid(), 2)\nos.kill(os.getpid(), 2)\nsys.imported.append('went on')")
    pid = os.fork()
    if not pid:
        try:
            import_it()
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == Exit.INTERRUPTED


def test_what_is_ignored_stays_ignored():
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
        signals.install()
        os.kill(os.getpid(), signal.SIGHUP)
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except Preempted:
            os._exit(7)
        os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
