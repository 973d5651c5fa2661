"""Ten of the cases of ``make test-signals``: a signal at any moment, and the same command ends as if there had been none."""

import random

import pytest
from signal_cases import KINDS, Storm, storm, words_of

pytestmark = pytest.mark.slow


def test_signals_at_random_moments(home, tmp_path, warm):
    words = words_of(home / "base", home / "train.jsonl")
    table = storm(Storm(words, tmp_path, warm, random.Random(20)), each=2)
    assert sum(table.values()) == 2 * len(KINDS)
    assert len({kind for kind, _, _ in table}) == len(KINDS)
