"""Conversations that are longer than a sample may be, for each choice of ``data.too_long``."""

import pytest
from erniecore_conformance.toys.tokenizer import ToyTokenizer
from erniecore_sft.encoder import SftEncoder
from erniecore_sft.plugin import plugin
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from erniecore.api import RowError
from erniecore.api.data import Conversation, Message
from erniecore.api.method import IGNORE

TOKENIZER = ToyTokenizer()  # a token per byte
SYSTEM = Message("system", "Be exact.")


def turn(question, completion, **more):
    return (Message("user", question), Message("assistant", completion, **more))


def encode(messages, limit, too_long="truncate"):
    (sample,) = SftEncoder(TOKENIZER, limit, too_long).encode(Conversation(tuple(messages)))
    return sample


def read(sample):
    return TOKENIZER.decode(sample.input_ids, skip_special=False)


def learned(sample):
    return TOKENIZER.decode([i for i in sample.labels if i != IGNORE], skip_special=False)


def size(*messages):
    return len(encode(messages, 10_000))


FOUR = [SYSTEM, *(m for i in range(4) for m in turn(f"question {i}", f"completion {i}"))]


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
def test_the_last_turns_go_first(kept):
    limit = size(*FOUR[: 1 + 2 * kept])
    for room in (limit, limit + 5):
        sample = encode(FOUR, room)
        assert learned(sample) == "".join(f"completion {i}</s>" for i in range(kept))
        assert read(sample).startswith("<s>System: Be exact.\nUser: question 0\n")
        assert sample.truncated == ("" if kept == 4 else "later turns left out")


def test_turns_that_are_not_learned_go_before_one_that_is():
    messages = [
        SYSTEM,
        *turn("a", "b" * 50, learn=False),
        *turn("question", "completion"),
        *turn("c", "d" * 50, learn=False),
    ]
    sample = encode(messages, 60)
    assert read(sample) == "<s>System: Be exact.\nUser: question\nAssistant: completion"
    assert learned(sample) == "completion</s>"
    assert sample.truncated == "later turns left out, earlier turns left out"


def test_a_long_question_keeps_its_end():
    sample = encode([SYSTEM, *turn("first " * 20 + "last?", "short")], 60)
    assert len(sample) == 60
    assert read(sample).startswith("<s>System: Be exact.\nUser: ")
    assert read(sample).endswith("first last?\nAssistant: short")
    assert (learned(sample), sample.truncated) == ("short</s>", "prompt cut")


def test_a_long_completion_keeps_its_beginning_and_teaches_no_end():
    sample = encode([SYSTEM, *turn("why?", "because " * 20)], 60)
    assert len(sample) == 60
    assert read(sample).startswith("<s>System: Be exact.\nUser: why?\nAssistant: because because")
    assert TOKENIZER.eos_id not in sample.labels
    assert ("because " * 20).startswith(learned(sample))
    assert sample.truncated == "completion cut"


def test_a_long_question_and_a_long_completion_are_cut_alike():
    sample = encode(turn("q" * 200, "a" * 200), 100)
    assert len(sample) == 100
    assert abs(read(sample).count("q") - read(sample).count("a")) < 25
    assert sample.truncated == "prompt cut, completion cut"


def test_the_system_text_goes_where_nothing_else_helps():
    sample = encode([Message("system", "s" * 200), *turn("question", "completion")], 40)
    assert read(sample) == "<s>User: question\nAssistant: completion"
    assert sample.truncated == "system text left out"


def test_half_a_character_is_no_text():
    sample = encode(turn("é" * 40, "ok"), 51)
    assert "\ufffd" not in read(sample)
    assert "é" * 10 in read(sample)


def test_a_long_tool_result_is_cut_where_it_is_the_longest():
    called = [
        Message("user", "read it"),
        Message("assistant", "reading", learn=False),
        Message("tool", "x" * 300 + "end"),
    ]
    sample = encode([*called, Message("assistant", "done")], 100)
    assert "read it" in read(sample)
    assert "xxend" in read(sample)
    assert (learned(sample), sample.truncated) == ("done</s>", "prompt cut")


@pytest.mark.parametrize("too_long", ["drop", "turns"])
def test_nothing_is_cut_unless_asked_for(too_long):
    with pytest.raises(RowError, match=r"set data\.too_long=truncate") as e:
        encode(turn("q" * 200, "a"), 100, too_long)
    assert e.value.code == "ERN-D044"


def test_drop_keeps_only_whole_rows():
    assert encode(FOUR, size(*FOUR), "drop").truncated == ""
    with pytest.raises(RowError, match="the row is too long"):
        encode(FOUR, size(*FOUR) - 1, "drop")


def test_no_room_for_a_single_token_of_both_is_an_error():
    with pytest.raises(RowError, match=r"raise data\.max_seq_len, or split the row") as e:
        encode(turn("question", "completion"), 10)
    assert e.value.code == "ERN-D044"


@pytest.mark.parametrize(("choice", "made"), [("auto", "truncate"), ("drop", "drop"), ("turns", "turns")])
def test_the_method_truncates_by_default(choice, made):
    assert plugin.ernie_build_encoder(TOKENIZER, 10, choice).too_long == made


CHOICES = st.sampled_from(["drop", "turns", "truncate"])
TURNS = st.lists(
    st.tuples(st.text("qé \n", min_size=1, max_size=40), st.text("aß.", min_size=1, max_size=40), st.booleans()),
    min_size=1,
    max_size=5,
)


@settings(deadline=None, max_examples=150)
@given(st.integers(2, 160), CHOICES, st.text("s", max_size=60), TURNS)
def test_whatever_the_limit_a_sample_fits_and_learns_what_the_whole_row_learns(limit, too_long, system, turns):
    messages = [m for q, a, learn in turns for m in turn(q + "?", a, learn=learn)]
    messages = ([Message("system", system)] if system else []) + messages
    encoder = SftEncoder(TOKENIZER, limit, too_long)
    assume(any(learn for *_, learn in turns))
    whole = encode(messages, 100_000)
    sample = refusal = None
    try:
        (sample,) = encoder.encode(Conversation(tuple(messages)))
    except RowError as e:
        refusal = e.code
    event(f"{too_long}: {refusal}")
    assert refusal in (None, "ERN-D044")
    if sample is None:
        assert len(whole) > limit
        return
    event(f"{too_long}: {sample.truncated or 'whole'}")
    assert len(sample) <= limit
    assert sample.input_ids[0] == TOKENIZER.bos_id
    assert bool(sample.truncated) == (len(whole) > limit)
    assert (sample.labels != IGNORE).any()
    if too_long == "turns":
        assert learned(whole).endswith(learned(sample))
    else:
        assert learned(whole).startswith(learned(sample))
    if not sample.truncated:
        assert sample.input_ids.tolist() == whole.input_ids.tolist()
