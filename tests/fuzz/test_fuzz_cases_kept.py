"""What a reader fails at becomes a case, the smallest of its kind, which is tried first from then on."""

import ast
import time

import fuzzing
import pytest
from hypothesis import given
from hypothesis import strategies as st


def test_what_fails_is_kept_and_tried_first(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzzing, "CASES", tmp_path)
    monkeypatch.setattr(fuzzing, "MINUTES", 1)
    seen = []

    def reader(number):
        seen.append(number)
        assert number < 50

    with pytest.raises(AssertionError):
        fuzzing.fuzzed(100)(given(number=st.integers())(fuzzing.kept("number")(reader)))()
    (case,) = tmp_path.iterdir()
    assert ast.literal_eval(case.read_text()) == {"number": 50}
    seen.clear()
    with pytest.raises(AssertionError):
        fuzzing.fuzzed(100)(given(number=st.just(1))(fuzzing.kept("number")(reader)))()
    assert seen[0] == 50


def test_a_reader_that_does_not_return_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzzing, "CASES", tmp_path)
    monkeypatch.setattr(fuzzing, "MINUTES", 1)
    monkeypatch.setattr(fuzzing, "PATIENCE", 0.05)

    @fuzzing.kept("number")
    def endless(number):
        while True:
            time.sleep(0.01)

    with pytest.raises(TimeoutError):
        endless(number=7)
    (case,) = tmp_path.iterdir()
    assert ast.literal_eval(case.read_text()) == {"number": 7}


def test_when_the_minutes_are_over_nothing_more_is_tried(monkeypatch):
    seen = []

    @fuzzing.kept("number")
    def late(number):
        seen.append(number)
        assert number < 3

    late(number=1)
    fuzzing.until("late", time.monotonic() - 1)
    late(number=2)
    assert seen == [1]
