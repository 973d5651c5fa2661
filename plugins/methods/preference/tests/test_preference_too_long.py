"""Preferences and rated completions that are longer than a sample may be, for each choice of ``data.too_long``."""

import pytest
from erniecore_conformance.toys.tokenizer import ToyTokenizer
from erniecore_preference.encoder import PairEncoder, RatedEncoder
from erniecore_preference.plugin import dpo, kto
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from erniecore.api import RowError
from erniecore.api.data import Message, Preference, UnpairedPreference
from erniecore.api.method import IGNORE

TOKENIZER = ToyTokenizer()  # a token per byte
SYSTEM = Message("system", "Be exact.")
MARKS = len("<") + len("User: \nAssistant: ")  # of a prompt without the question's text


def user(text):
    return Message("user", text)


def completion(text):
    return Message("assistant", text)


QUESTION = (user("q"),)


def pair(limit, chosen, rejected, prompt=QUESTION, too_long="truncate"):
    record = Preference(tuple(prompt), (completion(chosen),), (completion(rejected),))
    (sample,) = PairEncoder(TOKENIZER, limit, too_long=too_long).encode(record)
    return sample


def said(sample, which):
    return TOKENIZER.decode(
        [i for i in sample.labels[sample.fields["completion"] == which] if i != IGNORE], skip_special=False
    )


def prompt_of(sample):
    return TOKENIZER.decode(sample.input_ids[sample.fields["completion"] == 0], skip_special=False)


def test_the_question_is_cut_first_and_keeps_its_end():
    sample = pair(100, "good", "bad", [SYSTEM, user("x" * 200 + "end?")])
    assert len(sample) == 100
    assert prompt_of(sample).startswith("<s>System: Be exact.\nUser: x")
    assert prompt_of(sample).endswith("xend?\nAssistant:")
    assert (said(sample, 1), said(sample, 2)) == ("good</s>", "bad</s>")
    assert sample.truncated == "prompt cut"


def test_earlier_turns_go_before_anything_is_cut():
    sample = pair(60, "good", "bad", [user("a" * 90), completion("b"), user("c")])
    assert prompt_of(sample) == "<s>User: c\nAssistant:"
    assert sample.truncated == "earlier turns left out"


def test_then_both_completions_are_cut_to_the_same_length():
    sample = pair(100, "g" * 300, "b" * 200, [user("x" * 300)])
    good, bad = said(sample, 1), said(sample, 2)
    assert abs(len(good) - len(bad)) <= 1
    assert (set(good), set(bad)) == ({"g"}, {"b"})
    assert prompt_of(sample).count("x") == (101 - MARKS) // 4
    assert 99 <= len(sample) <= 100  # an odd token is left over
    assert sample.truncated == "prompt cut, completion cut"


def test_a_short_completion_stays_whole_and_the_long_one_gets_the_rest():
    sample = pair(100, "g" * 300, "b" * 20)
    assert said(sample, 2) == "b" * 20 + "</s>"
    assert len(sample) == 100
    assert said(sample, 1) == "g" * (100 - MARKS - 21)
    assert sample.truncated == "completion cut"


def test_completions_that_differ_behind_the_cut_are_nothing_to_prefer():
    with pytest.raises(RowError, match="the row is too long") as e:
        pair(60, "same " * 40 + "good", "same " * 40 + "bad")
    assert e.value.code == "ERN-D044"


@pytest.mark.parametrize("too_long", ["drop", "turns"])
def test_nothing_is_cut_unless_asked_for(too_long):
    with pytest.raises(RowError, match=r"set data\.too_long=truncate, or raise data\.max_seq_len"):
        pair(60, "g" * 100, "b", too_long=too_long)
    long = [user("a" * 90), completion("b"), user("c")]
    if too_long == "turns":
        assert pair(60, "g", "b", long, too_long).truncated == "earlier turns left out"
    else:
        with pytest.raises(RowError, match="the row is too long"):
            pair(60, "g", "b", long, too_long)


def test_rated_completions_are_cut_behind_their_question():
    record = UnpairedPreference((SYSTEM, user("x" * 200 + "end?"), completion("good " * 40)), desirable=True)
    (sample,) = RatedEncoder(TOKENIZER, 100, too_long="truncate").encode(record)
    assert len(sample) == 100
    assert prompt_of(sample).endswith("end?\nAssistant:")
    assert said(sample, 1).startswith("good good")
    assert sample.truncated == "prompt cut, completion cut"


@pytest.mark.parametrize("plugin", [dpo, kto], ids=["dpo", "kto"])
@pytest.mark.parametrize(("choice", "made"), [("auto", "truncate"), ("drop", "drop"), ("turns", "turns")])
def test_preference_methods_truncate_by_default(plugin, choice, made):
    given = {"config": plugin.Config()} if plugin is dpo else {}
    assert plugin.ernie_build_encoder(**given, tokenizer=TOKENIZER, max_length=10, too_long=choice).too_long == made


TEXT = st.text("aßc \n.", min_size=1, max_size=60).filter(str.strip)


@settings(deadline=None, max_examples=150)
@given(
    st.integers(2, 200), st.sampled_from(["drop", "turns", "truncate"]), st.lists(TEXT, max_size=4), TEXT, TEXT, TEXT
)
def test_whatever_the_limit_a_pair_fits_and_both_completions_keep_their_beginnings(
    limit, too_long, before, asked, good, bad
):
    prompt = [(user, completion)[i % 2](text) for i, text in enumerate(before[: len(before) // 2 * 2])] + [user(asked)]
    assume(good != bad)
    whole = pair(100_000, good, bad, prompt)
    sample = refusal = None
    try:
        sample = pair(limit, good, bad, prompt, too_long)
    except RowError as e:
        refusal = e.code
    event(f"{too_long}: {refusal}")
    assert refusal in (None, "ERN-D044")
    if sample is None:
        return
    event(f"{too_long}: {sample.truncated or 'whole'}")
    assert len(sample) <= limit
    assert bool(sample.truncated) == (len(whole) > limit)
    sides = [(said(sample, which), said(whole, which)) for which in (1, 2)]
    assert all((part and full.startswith(part)) or "\ufffd" in part for part, full in sides)
    assert sides[0][0] != sides[1][0]
    cut = [len(part.encode()) < len(full.encode()) for part, full in sides]
    assert any(cut) == ("completion cut" in sample.truncated)
    if all(cut):
        counts = [(sample.labels[sample.fields["completion"] == which] != IGNORE).sum() for which in (1, 2)]
        assert counts[0] == counts[1]
