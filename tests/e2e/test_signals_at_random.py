"""Ten of the cases of ``make test-signals``: a signal at any moment, and the same command ends as if there had been none."""

import pytest
from signal_cases import KINDS, storm, words_of

pytestmark = pytest.mark.slow


def test_signals_at_random_moments(home, tmp_path, warm):
    table = storm(words_of(home / "base", home / "train.jsonl"), tmp_path, warm, each=2, seed=20)
    assert sum(table.values()) == 2 * len(KINDS)
    assert len({kind for kind, _, _ in table}) == len(KINDS)
