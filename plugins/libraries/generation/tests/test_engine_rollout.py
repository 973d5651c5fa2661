"""Texts of rollouts, and rewards that are checked before anybody learns from them."""

import numpy as np
import pytest
from erniecore_conformance.toys.data import toy_completions
from erniecore_conformance.toys.others import ToyRewardPlugin
from erniecore_conformance.toys.tokenizer import ToyTokenizer
from erniecore_generation.completions import TextStream, texts_of
from erniecore_generation.rollout import measured
from hypothesis import given
from hypothesis import strategies as st

from erniecore.engine.training.rewards import compute_rewards
from erniecore.errors import PluginBroken


@given(st.lists(st.integers(0, 259), max_size=30))
def test_a_text_is_what_would_have_been_streamed(ids):
    tokenizer = ToyTokenizer()
    stream = TextStream(tokenizer)
    for token in ids:
        stream.push(token)
    stream.close()
    assert texts_of(tokenizer, [ids]) == [stream.text]


#: the id of byte 0
FIRST_BYTE = 4


class Counting(ToyTokenizer):
    """Counts the ids that it decodes."""

    decoded = 0

    def decode(self, ids, *, skip_special=True):
        self.decoded += len(ids)
        return super().decode(ids, skip_special=skip_special)


@given(st.lists(st.sampled_from([0x80, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x41]), max_size=40))
def test_broken_characters_are_streamed_as_they_are_decoded(values):
    tokenizer, ids = ToyTokenizer(), [FIRST_BYTE + value for value in values]
    stream = TextStream(tokenizer)
    shown = "".join(stream.push(token) for token in ids)
    assert texts_of(tokenizer, [ids]) == [shown + stream.close()]


def test_a_long_text_of_broken_characters_is_not_decoded_again_and_again():
    tokenizer = Counting()
    stream = TextStream(tokenizer)
    for _ in range(400):
        stream.push(FIRST_BYTE + 0x80)
    assert len(stream.text) > 390
    assert tokenizer.decoded < 400 * 20


def test_log_probabilities_and_entropies_at_a_temperature():
    logits = np.array([[0.0, np.log(2.0), -np.inf]], np.float32)
    log_probs, entropies = measured(logits, np.array([1]), 0.5)
    assert log_probs[0] == pytest.approx(np.log(4 / 5))
    assert entropies[0] == pytest.approx(-(0.8 * np.log(0.8) + 0.2 * np.log(0.2)))


class Answering:
    """A host whose plugin gives fixed rewards."""

    def __init__(self, rewards):
        self.rewards = rewards

    def call(self, plugin, hook, **arguments):
        assert hook == "ernie_compute_rewards"
        return self.rewards


def test_rewards_become_floats():
    host = Answering([True, 0, 1, 2, 3, 4.5])
    assert compute_rewards(host, ToyRewardPlugin(), None, toy_completions()) == [1.0, 0, 1, 2, 3, 4.5]


@pytest.mark.parametrize(
    ("rewards", "message"), [([1.0], "1 reward for 6 completions"), ([float("nan")] * 6, "not finite")]
)
def test_rewards_that_cannot_be_learned_from_name_the_reward_function(rewards, message):
    with pytest.raises(PluginBroken, match=f"'toy' .*{message}"):
        compute_rewards(Answering(rewards), ToyRewardPlugin(), None, toy_completions())
