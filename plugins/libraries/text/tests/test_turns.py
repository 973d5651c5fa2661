"""Turns of conversations as tokens."""

import pytest
from erniecore_conformance.toys.tokenizer import ToyTokenizer
from erniecore_text import EncodedCompletion, TurnEncoder, shortened

from erniecore.api import RowError
from erniecore.api.data import Message
from erniecore.api.method import IGNORE

TOKENIZER = ToyTokenizer()
TURNS = TurnEncoder(TOKENIZER)
SYSTEM, Q, A = Message("system", "S"), Message("user", "q"), Message("assistant", "a")


def text(ids):
    return TOKENIZER.decode(list(ids), skip_special=False)


def test_a_completion_starts_where_the_model_begins_to_write():
    completion = TURNS.encode_completion([SYSTEM, Q], [A], (), "$")
    in_use = TOKENIZER.chat_template.render([SYSTEM, Q], add_generation_prompt=True)
    assert text(completion.prompt) == in_use
    assert text(completion.ids) == "a<|end_of_sentence|>"
    assert completion.is_target == [True, True]


class Joining(ToyTokenizer):
    """Takes the last token of a prompt and the first that the model writes as one."""

    def encode_segments(self, segments):
        parts = super().encode_segments(segments)
        for i in range(1, len(parts)):
            if segments[i].generated and not segments[i - 1].generated:
                parts[i][0] = parts[i - 1].pop()
        return parts


def test_a_tokenizer_that_joins_prompt_and_completion_is_refused():
    with pytest.raises(RowError) as caught:
        TurnEncoder(Joining()).encode_completion([SYSTEM, Q], [A, Q, A], (), "$.messages")
    assert (caught.value.code, caught.value.where) == ("ERN-D047", "$.messages[0]")
    assert "begin anew" in caught.value.fix


class JoiningSome(Joining):
    """Joins them in rows that say "x"."""

    def encode_segments(self, segments):
        says = any("x" in segment.text for segment in segments if not segment.trusted)
        return (super() if says else ToyTokenizer()).encode_segments(segments)


def test_every_row_is_compared_not_the_first_of_its_kind():
    turns = TurnEncoder(JoiningSome())
    turns.encode_completion([SYSTEM, Q], [A, Q, A], (), "$.messages")
    with pytest.raises(RowError) as caught:
        turns.encode_completion([SYSTEM, Message("user", "x")], [A, Q, A], (), "$.messages")
    assert (caught.value.code, caught.value.where) == ("ERN-D047", "$.messages[0]")


def test_the_prompt_of_a_row_has_the_tokens_in_use_whatever_the_tokenizer_joins():
    completion = TurnEncoder(Joining()).encode_completion([SYSTEM, Q], [A], (), "$")
    in_use = TOKENIZER.chat_template.segments([SYSTEM, Q], add_generation_prompt=True)
    assert completion.prompt == [i for part in Joining().encode_segments(in_use) for i in part]


def test_questions_within_a_completion_are_not_learned():
    completion = TURNS.encode_completion([Q], [A, Message("user", "w"), Message("assistant", "b")], (), "$")
    learned = [i for i, yes in zip(completion.ids, completion.is_target, strict=True) if yes]
    assert text(learned) == "a<|end_of_sentence|>b<|end_of_sentence|>"
    assert "w" in text(completion.ids)


def test_what_stands_behind_the_last_learned_turn_is_left_out():
    silent = Message("assistant", "zz", learn=False)
    completion = TURNS.encode_completion([Q], [A, Q, silent], (), "$")
    assert text(completion.ids).endswith("a<|end_of_sentence|>")


def test_the_size_counts_inputs_only():
    completion = EncodedCompletion([1, 2, 3], [4, 5], [True, True])
    inputs, labels = TURNS.arrays(completion)
    assert completion.size == len(inputs) == len(labels) == 4


def test_the_model_learns_to_stop_at_the_end_of_a_turn():
    _, labels = TURNS.arrays(TURNS.encode_completion([Q], [A], (), "$"))
    assert labels[-1] == TOKENIZER.special_tokens[TOKENIZER.chat_template.stop]
    assert (labels[:-2] == IGNORE).all()


def test_a_completion_without_a_learned_turn_says_where():
    with pytest.raises(RowError, match="no turn is a target of the loss") as caught:
        TURNS.encode_completion([Q], [Message("assistant", "a", learn=False)], (), "$.chosen")
    assert caught.value.where == "$.chosen"


def test_prompts_lose_turns_from_the_left_and_the_system_text_last():
    found = [
        ("".join(m.content for m in messages), why) for messages, why in shortened([SYSTEM, Q, A, Message("user", "r")])
    ]
    assert found == [("Sqar", ""), ("Sr", "earlier turns left out"), ("r", "system text left out")]
