"""Requests to stop, by signal and by file."""

import os
import signal
import threading

import pytest

from erniecore.engine.stop import StopRequest
from erniecore.errors import Preempted


def deferred(tmp_path):
    stop = StopRequest(tmp_path / "stop")
    stop.defer()
    return stop


def test_before_training_a_signal_ends_the_run_at_once(tmp_path):
    with pytest.raises(Preempted, match="SIGTERM"), StopRequest(tmp_path / "stop").listening():
        os.kill(os.getpid(), signal.SIGTERM)


def test_handlers_can_be_set_again_after_a_library_took_them(tmp_path):
    stop = deferred(tmp_path)
    with stop.listening():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        stop.install()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.reason == "SIGTERM"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_signal_is_noted_and_nothing_else_happens(tmp_path, number):
    stop = deferred(tmp_path)
    with stop.listening():
        assert stop.reason == ""
        os.kill(os.getpid(), number)
        assert stop.reason == number.name


def test_second_interrupt_ends_at_once(tmp_path):
    stop = deferred(tmp_path)
    with stop.listening():
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.reason == "SIGINT"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_second_sigterm_changes_nothing(tmp_path):
    stop = deferred(tmp_path)
    with stop.listening():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.reason == "SIGTERM"


def test_handlers_are_put_back(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest(tmp_path / "stop").listening():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_file_asks_once(tmp_path):
    stop = StopRequest(tmp_path / "stop")
    (tmp_path / "stop").touch()
    assert stop.reason == str(tmp_path / "stop")
    stop.clear_control()
    assert StopRequest(tmp_path / "stop").reason == ""


def test_other_threads_listen_to_the_file_only(tmp_path):
    stop, seen = StopRequest(tmp_path / "stop"), []

    def work():
        with stop.listening():
            (tmp_path / "stop").touch()
            seen.append(stop.reason)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [str(tmp_path / "stop")]
