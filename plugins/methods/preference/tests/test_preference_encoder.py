"""Preferences and rated conversations to samples."""

import numpy as np
import pytest
from erniecore_conformance.toys.tokenizer import ToyTokenizer
from erniecore_preference.encoder import PairEncoder, RatedEncoder
from erniecore_text.turns import EARLIER_TURNS, SYSTEM_TEXT
from hypothesis import event, given, settings
from hypothesis import strategies as st

from erniecore.api import EnvironmentFault, RowError
from erniecore.api.data import Message, Preference, UnpairedPreference
from erniecore.api.method import IGNORE, Origin

TOKENIZER = ToyTokenizer()
END = TOKENIZER.special_tokens["<|end_of_sentence|>"]


def user(text):
    return Message("user", text)


def completion(text, **more):
    return Message("assistant", text, **more)


QUESTION, GOOD, BAD = (user("q"),), (completion("good"),), (completion("bad"),)


def pair(prompt=QUESTION, chosen=GOOD, rejected=BAD, **more):
    return Preference(tuple(prompt), tuple(chosen), tuple(rejected), origin=Origin("f", 7), **more)


def encode(record, max_length=1000, **options):
    (sample,) = PairEncoder(TOKENIZER, max_length, **options).encode(record)
    return sample


def text(ids):
    return TOKENIZER.decode([i for i in ids if i != IGNORE], skip_special=False)


def side(sample, which):
    """What one completion's columns read and learn, the shared ones in front."""
    mine = sample.fields["completion"] == which
    return text(sample.input_ids[(sample.fields["completion"] == 0) | mine]), text(sample.labels[mine])


def test_both_completions_follow_the_prompt():
    sample = encode(pair([Message("system", "S"), user("q")]))
    assert side(sample, 1) == ("<s>System: S\nUser: q\nAssistant: good", "good</s>")
    assert side(sample, 2) == ("<s>System: S\nUser: q\nAssistant: bad", "bad</s>")
    assert (sample.origin, sample.truncated) == (Origin("f", 7), "")


def test_the_prompt_is_there_once():
    sample = encode(pair())
    assert len(sample) == len("User: q\nAssistant: ") + 1 - 1 + len("good") + 1 + len("bad") + 1
    assert sample.fields["sample"].tolist() == [1] + [0] * (len(sample) - 1)


def test_both_completions_start_at_the_same_position():
    sample = encode(pair())
    chosen, rejected = (sample.position_ids[sample.fields["completion"] == which] for which in (1, 2))
    assert chosen[0] == rejected[0] == (sample.fields["completion"] == 0).sum()
    assert (np.diff(chosen) == 1).all()
    assert (np.diff(rejected) == 1).all()


def test_the_completions_do_not_see_each_other():
    sample = encode(pair())
    K, C, n = (sample.fields["completion"] == 0).sum(), (sample.fields["completion"] == 1).sum(), len(sample)
    ends = sample.end_rows
    assert (set(ends[:K]), set(ends[K : K + C]), set(ends[K + C :])) == ({n}, {K + C}, {n})


def test_completions_of_several_turns():
    chosen = (completion("a"), user("more"), completion("b"))
    sample = encode(pair(chosen=chosen, rejected=(completion("c"), user("why"), completion("d"))))
    read, learned = side(sample, 1)
    assert read == "<s>User: q\nAssistant: a<|end_of_sentence|>User: more\nAssistant: b"
    assert learned == "a</s>b</s>"
    assert side(sample, 2)[1] == "c</s>d</s>"


def test_earlier_completions_are_prompt():
    sample = encode(pair([user("q"), completion("a"), user("p")]))
    assert side(sample, 1)[0].startswith("<s>User: q\nAssistant: a<|end_of_sentence|>User: p\n")
    assert side(sample, 1)[1] == "good</s>"


def test_turns_of_a_completion_that_are_not_learned_count_as_given():
    chosen = (completion("a", learn=False), user("more"), completion("b"))
    assert side(encode(pair(chosen=chosen)), 1)[1] == "b</s>"


@pytest.mark.parametrize(
    "chosen", [(completion("bad"),), (completion("", reasoning="bad"),)], ids=["messages", "tokens"]
)
def test_equal_completions_are_refused(chosen):
    with pytest.raises(RowError, match="the same") as e:
        encode(pair(chosen=chosen))
    assert e.value.code == "ERN-D049"


LONG = (
    Message("system", "quick"),
    *(m for i in range(3) for m in (user(f"fox {i}"), completion("dog"))),
    user("fox 3"),
)


def test_the_prompt_is_shortened_by_whole_turns():
    whole = len(encode(pair(LONG)))
    for dropped, size in enumerate((whole, whole - 1)):
        sample = encode(pair(LONG), size)
        assert side(sample, 1)[0].startswith(f"<s>System: quick\nUser: fox {dropped}\n")
        assert sample.truncated == (EARLIER_TURNS if dropped else "")


def test_then_the_system_text_goes():
    shortest = len(encode(pair(LONG[-1:])))
    sample = encode(pair(LONG), shortest)
    assert side(sample, 2)[0] == "<s>User: fox 3\nAssistant: bad"
    assert sample.truncated == SYSTEM_TEXT


def test_completions_are_never_cut():
    shortest = len(encode(pair(LONG[-1:])))
    with pytest.raises(RowError, match=rf"{shortest} tokens.*at most {shortest - 1}") as e:
        encode(pair(LONG), shortest - 1)
    assert e.value.code == "ERN-D044"


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 120), st.integers(0, 4), st.text(max_size=8), st.text(max_size=8))
def test_whatever_the_limit_completions_are_whole(limit, turns, good, bad):
    prompt = (*(m for i in range(turns) for m in (user(f"fox {i}"), completion("dog"))), user("q"))
    try:
        sample = encode(pair(prompt, (completion("+" + good),), (completion("-" + bad),)), limit)
    except RowError as e:
        event(e.code)
        return
    assert len(sample) <= limit
    assert side(sample, 1)[1] == f"+{good}</s>"
    assert side(sample, 2)[1] == f"-{bad}</s>"
    assert bool(sample.truncated) == (not side(sample, 1)[0].startswith("<s>User: " + ("fox 0" if turns else "q")))


def test_margins_are_kept_when_they_are_wanted():
    assert encode(pair(margin=2.5), margin=True).fields["margin"].tolist()[0] == 2.5
    assert "margin" not in encode(pair(margin=2.5)).fields


@pytest.mark.parametrize(("margin", "code"), [(None, "ERN-D030"), (0.0, "ERN-D036"), (-1.0, "ERN-D036")])
def test_margins_that_are_wanted_must_be_there_and_positive(margin, code):
    with pytest.raises(RowError) as e:
        encode(pair(margin=margin), margin=True)
    assert (e.value.code, e.value.where) == (code, "$.margin")


def test_a_completion_without_a_learned_turn_is_refused():
    with pytest.raises(RowError) as e:
        encode(pair(chosen=(completion("a", learn=False),)))
    assert (e.value.code, e.value.where) == ("ERN-D043", "$.chosen")


def test_tokenizer_without_template_is_refused():
    tokenizer = ToyTokenizer()
    tokenizer.chat_template = None
    with pytest.raises(EnvironmentFault, match="no chat template"):
        PairEncoder(tokenizer, 10)


# ---- templates that change the prompt


class Thinking:
    """A template whose generation prompt opens a thought, which only the last completion keeps."""

    source, turn_end, stop = "", "<|end_of_sentence|>", "</s>"

    def __init__(self, usual=True):
        self.usual = usual

    def segments(self, messages, tools=(), *, add_generation_prompt=False, thinking=None):
        from erniecore.api.method import Segment

        question = max(i for i, m in enumerate(messages) if m.role == "user")
        parts = [Segment("<s>", True)]
        for i, m in enumerate(messages):
            if m.role == "user":
                parts.append(Segment(f"U{m.content}\n", True, i))
                continue
            thought = (
                f"<think>{m.reasoning}</think>" if m.reasoning and (i > question or not add_generation_prompt) else ""
            )
            opened = thought.startswith("<think>")
            parts.append(Segment("A" + ("<think>" if opened else ""), True, i))
            parts.append(Segment(thought.removeprefix("<think>") + m.content + self.turn_end, True, i, generated=True))
        open_only = self.usual if thinking is None else thinking
        prompt = "A<think>" if open_only else "A<think></think>"
        return [*parts, *([Segment(prompt, True)] if add_generation_prompt else [])]

    def render(self, messages, tools=(), *, add_generation_prompt=True, thinking=None):
        asked = {"add_generation_prompt": add_generation_prompt, "thinking": thinking}
        return "".join(s.text for s in self.segments(messages, tools, **asked))


def encoder_of(template):
    tokenizer = ToyTokenizer()
    tokenizer.chat_template = template
    return PairEncoder(tokenizer, 1000)


@pytest.fixture
def thinking():
    return encoder_of(Thinking())


def test_a_completion_without_reasoning_has_an_empty_one_behind_the_same_prompt(thinking):
    (sample,) = thinking.encode(pair(chosen=(completion("a", reasoning="r"),), rejected=(completion("b"),)))
    assert side(sample, 1) == ("<s>Uq\nA<think>r</think>a", "r</think>a</s>")
    assert side(sample, 2) == ("<s>Uq\nA<think></think>b", "</think>b</s>")


def test_completions_whose_prompts_end_differently_share_what_is_alike():
    encoder = encoder_of(Thinking(usual=False))
    (sample,) = encoder.encode(pair(chosen=(completion("a", reasoning="r"),), rejected=(completion("b"),)))
    assert side(sample, 1) == ("<s>Uq\nA<think>r</think>a", "r</think>a</s>")
    assert side(sample, 2) == ("<s>Uq\nA<think></think>b", "b</s>")


def test_old_reasoning_is_left_out_of_the_prompt_as_in_use(thinking):
    (sample,) = thinking.encode(pair([user("q"), completion("a", reasoning="r"), user("p")]))
    assert side(sample, 1)[0] == "<s>Uq\nAa<|end_of_sentence|>Up\nA<think></think>good"


def test_completions_with_a_prompt_that_use_never_has_are_refused(thinking):
    session = (completion("a", reasoning="r"), user("p"), completion("b", reasoning="s"))
    with pytest.raises(RowError) as e:
        thinking.encode(pair(chosen=session))
    assert (e.value.code, e.value.where) == ("ERN-D047", "$.chosen")


# ---- rated conversations


def rated(*messages, desirable=True, max_length=1000):
    (sample,) = RatedEncoder(TOKENIZER, max_length).encode(
        UnpairedPreference(messages, desirable, origin=Origin("f", 3))
    )
    return sample


@pytest.mark.parametrize("desirable", [True, False])
def test_the_last_completion_is_judged(desirable):
    sample = rated(user("q"), completion("a"), user("p"), completion("b"), desirable=desirable)
    assert text(sample.input_ids) == "<s>User: q\nAssistant: a<|end_of_sentence|>User: p\nAssistant: b"
    assert text(sample.labels) == "b</s>"
    assert set(sample.fields["completion"].tolist()) == {0, 1 if desirable else 2}
    assert sample.origin == Origin("f", 3)


def test_earlier_turns_of_a_rated_conversation_go_first():
    short = len(rated(user("p"), completion("b")))
    sample = rated(user("q"), completion("a"), user("p"), completion("b"), max_length=short)
    assert (text(sample.input_ids), sample.truncated) == ("<s>User: p\nAssistant: b", EARLIER_TURNS)
    with pytest.raises(RowError) as e:
        rated(user("q"), completion("a"), user("p"), completion("b"), max_length=short - 1)
    assert e.value.code == "ERN-D044"
