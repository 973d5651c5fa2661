"""Statistics of evaluation against formulas and published values, and the bookkeeping of groups."""

import math

import numpy as np
import pytest
from erniecore_eval.suites import (
    Item,
    Score,
    ScoreTable,
    by_group,
    exact_match,
    loss_size,
    rows_of_batches,
    split_prompt,
    wilson,
)
from hypothesis import given
from hypothesis import strategies as st

from erniecore.types.records import Conversation, Document, Message
from erniecore.types.samples import IGNORE, Sample

counts = st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def sample(*labels):
    n = len(labels)
    return Sample(np.zeros(n, np.int64), np.array(labels, np.int64), np.arange(n), np.full(n, n, np.int32))


@pytest.mark.parametrize(
    ("correct", "n", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),  # Newcombe (1998), table I, method 3
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_equals_published_intervals(correct, n, low, high):
    np.testing.assert_allclose(wilson(correct, n), (low, high), atol=5e-5)


@given(counts)
def test_wilson_contains_the_rate_and_mirrors(case):
    correct, n = case
    low, high = wilson(correct, n)
    assert 0 <= low <= correct / n <= high <= 1
    np.testing.assert_allclose(wilson(n - correct, n), (1 - high, 1 - low), atol=1e-12)


@pytest.mark.parametrize(("correct", "n"), [(0, 0), (-1, 5), (6, 5)])
def test_impossible_counts_are_refused(correct, n):
    with pytest.raises(ValueError, match=f"{correct} of {n}"):
        wilson(correct, n)


def test_rates_follow_from_sums():
    score = Score(rows=1, tokens=4, text_bytes=3, nll=4 * math.log(8))
    assert score.loss == pytest.approx(math.log(8))
    assert score.perplexity == pytest.approx(8)
    assert score.bits_per_byte == pytest.approx(4 * 3 / 3)


def test_what_was_not_measured_is_not_reported():
    assert Score(rows=2).as_json() == {"rows": 2, "tokens": 0, "bytes": 0}
    assert Score(nll=1.0, tokens=0).loss is None
    assert Score(nll=1e6, tokens=1).as_json()["perplexity"] is None


def test_the_total_weighs_tokens_not_groups():
    table = ScoreTable()
    table.add("a", Score(rows=1, tokens=1, nll=4.0))
    table.add("b", Score(rows=1, tokens=3, nll=0.0))
    table.add("a", Score(generated=2, correct=1))
    assert table.total.loss == 1.0
    assert list(table.groups) == ["a", "b"]
    assert table.groups["a"].as_json()["exact_match"]["score"] == 0.5


@pytest.mark.parametrize(("completion", "same"), [(" 1  2\n", True), ("12", False), ("1 2 3", False), ("", False)])
def test_exact_match_ignores_white_space_only(completion, same):
    assert exact_match(completion, "1 2") is same


def test_the_question_is_all_but_the_last_completion():
    user, bot = Message("user", "q"), Message("assistant", "a")
    assert split_prompt(Conversation((user, bot, user, bot))) == ((user, bot, user), bot)
    assert split_prompt(Conversation((bot,))) is None
    assert split_prompt(Conversation((bot, user))) is None
    assert split_prompt(Document("text")) is None


def test_only_loss_tokens_count_and_bytes_are_utf8():
    class Letters:
        def decode(self, ids, *, skip_special):
            assert skip_special
            return "".join({1: "a", 2: "é", 3: ""}[i] for i in ids)

    assert loss_size([sample(IGNORE, 1, 2), sample(3, IGNORE)], Letters()) == (3, 3)


def test_batches_hold_every_sample_once_by_length():
    samples = [sample(*[1] * n) for n in (5, 1, 3, 2, 4)]
    batches = list(rows_of_batches(samples, 2))
    assert [[len(row[0]) for row in batch] for batch in batches] == [[1, 2], [3, 4], [5]]


def test_groups_keep_the_order_of_first_appearance():
    items = [Item(group, Document(str(i)), ()) for i, group in enumerate("bab")]
    assert {g: [i.record.text for i in m] for g, m in by_group(items).items()} == {"b": ["0", "2"], "a": ["1"]}
