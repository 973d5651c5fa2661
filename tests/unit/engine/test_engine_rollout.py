"""Texts of rollouts, and scores that are checked before anybody learns from them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from erniecore.engine.generation.answers import TextStream, texts_of
from erniecore.engine.generation.rollout import measured
from erniecore.engine.training.scorers import score
from erniecore.errors import PluginBroken
from erniecore.testing.toys.data import toy_attempts
from erniecore.testing.toys.others import ToyScorerPlugin
from erniecore.testing.toys.tokenizer import ToyTokenizer


@given(st.lists(st.integers(0, 259), max_size=30))
def test_a_text_is_what_would_have_been_streamed(ids):
    tokenizer = ToyTokenizer()
    stream = TextStream(tokenizer)
    for token in ids:
        stream.push(token)
    stream.close()
    assert texts_of(tokenizer, [ids]) == [stream.text]


def test_log_probabilities_and_entropies_at_a_temperature():
    logits = np.array([[0.0, np.log(2.0), -np.inf]], np.float32)
    log_probs, entropies = measured(logits, np.array([1]), 0.5)
    assert log_probs[0] == pytest.approx(np.log(4 / 5))
    assert entropies[0] == pytest.approx(-(0.8 * np.log(0.8) + 0.2 * np.log(0.2)))


class Answering:
    """A host whose plugin gives fixed scores."""

    def __init__(self, scores):
        self.scores = scores

    def call(self, plugin, hook, **arguments):
        assert hook == "ernie_score_attempts"
        return self.scores


def test_scores_become_floats():
    assert score(Answering([True, 0, 1, 2, 3, 4.5]), ToyScorerPlugin(), None, toy_attempts()) == [1.0, 0, 1, 2, 3, 4.5]


@pytest.mark.parametrize(("scores", "message"), [([1.0], "1 scores for 6 answers"), ([float("nan")] * 6, "not finite")])
def test_scores_that_cannot_be_learned_from_name_the_scorer(scores, message):
    with pytest.raises(PluginBroken, match=f"'toy' .*{message}"):
        score(Answering(scores), ToyScorerPlugin(), None, toy_attempts())
