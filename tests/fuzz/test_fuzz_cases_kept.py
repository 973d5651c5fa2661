"""What a reader fails at becomes a case, the smallest of its kind, which is tried first from then on."""

import ast

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
