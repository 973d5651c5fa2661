"""Conversations to samples."""

import re

import pytest
from erniecore_sft.encoder import SOME_TURNS, SftEncoder
from erniecore_text import JinjaChatTemplate, SentencePieceTokenizer
from erniecore_text.training import train
from erniecore_text.turns import EARLIER_TURNS, SYSTEM_TEXT
from hypothesis import event, given, settings
from hypothesis import strategies as st

from erniecore.api import EnvironmentFault, RowError
from erniecore.api.data import Conversation, Message
from erniecore.api.method import IGNORE, Origin

PLAIN = (
    "{{ '<|begin_of_sentence|>' }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ m.content + '\n' }}"
    "{% elif m.role == 'user' %}{{ 'User: ' + m.content + '\n' }}"
    "{% else %}{{ 'Assistant: ' + m.content + '<|end_of_sentence|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}"
)
#: drops the reasoning of earlier turns in prompts
THINKING = (
    "{% set ns = namespace(q=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.q = loop.index0 %}{% endif %}"
    "{% endfor %}{% for m in messages %}"
    "{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}"
    "{% if m.reasoning_content and (loop.index0 > ns.q or not add_generation_prompt) %}"
    "{{ '<think>\n' + m.reasoning_content + '\n</think>\n' }}{% endif %}{{ m.content + '<|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)
#: the same, with a generation prompt behind every conversation, whatever is asked for
ALWAYS = THINKING.replace("{% if add_generation_prompt %}", "{% if true %}").replace(
    " or not add_generation_prompt", ""
)
WORDS = "the quick brown fox jumps over a lazy dog; User: says and Assistant: completions\n"


@pytest.fixture(scope="module")
def trained():
    return train([WORDS, *(f"{a} {b}. " for a in WORDS.split() for b in WORDS.split())], 400)


assert "add_generation_prompt" not in ALWAYS


@pytest.fixture(scope="module")
def make(trained):
    """An encoder for one of the two templates, and its tokenizer."""

    def build(max_length=1000, template="plain"):
        templates = {
            "plain": JinjaChatTemplate(PLAIN),
            "thinking": JinjaChatTemplate(THINKING, "<|im_end|>", "<|im_end|>"),
            "always": JinjaChatTemplate(ALWAYS, "<|im_end|>", "<|im_end|>"),
        }
        tokenizer = SentencePieceTokenizer(trained.model, trained.files, templates[template])
        return SftEncoder(tokenizer, max_length), tokenizer

    return build


def user(text):
    return Message("user", text)


def completion(text, **more):
    return Message("assistant", text, **more)


def read(sample, tokenizer):
    return tokenizer.decode(sample.input_ids, skip_special=False)


def learned(sample, tokenizer):
    return tokenizer.decode([i for i in sample.labels if i != IGNORE], skip_special=False)


def one(encoder, *messages, tools=()):
    (sample,) = encoder.encode(Conversation(messages, tools=tools, origin=Origin("f", 7)))
    return sample


def test_one_turn(make):
    encoder, tokenizer = make()
    sample = one(encoder, Message("system", "S"), user("q"), completion("a"))
    assert read(sample, tokenizer) == "<|begin_of_sentence|>S\nUser: q\nAssistant: a"
    assert learned(sample, tokenizer) == "a</s>"
    assert sample.labels[-1] == tokenizer.eos_id
    assert sample.origin == Origin("f", 7)


def test_labels_are_the_next_tokens(make):
    encoder, tokenizer = make()
    sample = one(encoder, user("the fox"), completion("jumps over"), user("dog"), completion("the quick fox"))
    end = tokenizer.special_tokens["<|end_of_sentence|>"]
    for label, following in zip(sample.labels, sample.input_ids[1:], strict=False):
        assert label in (IGNORE, tokenizer.eos_id if following == end else following)


def test_turns_end_with_the_separator_as_input_and_with_the_stop_token_as_target(make):
    encoder, tokenizer = make()
    sample = one(encoder, user("q"), completion("a"), user("p"), completion("b"))
    assert read(sample, tokenizer).count("<|end_of_sentence|>") == 1
    assert learned(sample, tokenizer) == "a</s>b</s>"


def test_a_turn_with_label_0_is_read_and_not_learned(make):
    encoder, tokenizer = make()
    sample = one(encoder, user("q"), completion("a", learn=False), user("p"), completion("b"))
    assert "Assistant: a<|end_of_sentence|>" in read(sample, tokenizer)
    assert learned(sample, tokenizer) == "b</s>"


def test_what_follows_the_last_learned_turn_is_cut(make):
    encoder, tokenizer = make()
    sample = one(encoder, user("q"), completion("a"), user("p"), completion("b", learn=False))
    assert read(sample, tokenizer).endswith("Assistant: a")


def test_nothing_learned_is_dropped(make):
    encoder, _ = make()
    with pytest.raises(RowError) as e:
        one(encoder, user("q"), completion("a", learn=False))
    assert e.value.code == "ERN-D043"


def test_prompt_has_the_ids_that_the_model_gets_in_use(make):
    encoder, tokenizer = make()
    messages = [
        Message("system", "S the fox"),
        user("lazy dog"),
        completion("jumps over"),
        user("a"),
        completion("the"),
    ]
    sample = one(encoder, *messages)
    for turn in (2, 4):
        prompt = tokenizer.chat_template.segments(messages[:turn], add_generation_prompt=True)
        ids = [i for piece in tokenizer.encode_segments(prompt) for i in piece]
        assert sample.input_ids[: len(ids)].tolist() == ids
        assert sample.labels[len(ids) - 1] != IGNORE
        assert turn == 4 or (sample.labels[: len(ids) - 1] == IGNORE).all()


def test_samples_are_plainly_causal(make):
    sample = one(make()[0], user("q"), completion("a"))
    n = len(sample)
    assert sample.position_ids.tolist() == list(range(n))
    assert sample.end_rows.tolist() == [n] * n


# ---- length

LONG = [Message("system", "quick"), *(m for i in range(4) for m in (user(f"fox {i}"), completion(f"dog {i}")))]


def lengths(make):
    """Tokens of LONG without its first 0, 1, … turns, and of the last turn without system text."""
    encoder, _ = make()
    kept = [len(one(encoder, LONG[0], *LONG[1 + 2 * k :])) for k in range(4)]
    return kept, len(one(encoder, *LONG[7:]))


@pytest.mark.parametrize("drop", [0, 1, 2, 3])
def test_earlier_turns_go_first_and_the_begin_token_stays(make, drop):
    size = lengths(make)[0][drop]
    encoder, tokenizer = make(size)
    sample = one(encoder, *LONG)
    assert len(sample) == size
    assert read(sample, tokenizer).startswith(f"<|begin_of_sentence|>quick\nUser: fox {drop}\n")
    assert sample.truncated == (EARLIER_TURNS if drop else "")


def test_then_the_system_text_goes(make):
    encoder, tokenizer = make(lengths(make)[1])
    sample = one(encoder, *LONG)
    assert read(sample, tokenizer).startswith("<|begin_of_sentence|>User: fox 3\n")
    assert sample.truncated == SYSTEM_TEXT


def test_last_turn_alone_too_long_is_dropped_with_its_size(make):
    size = lengths(make)[1]
    with pytest.raises(RowError, match=rf"{size} tokens.*at most {size - 1}") as e:
        one(make(size - 1)[0], *LONG)
    assert e.value.code == "ERN-D044"


def test_turns_behind_the_last_learned_one_cost_no_room(make):
    encoder, tokenizer = make(12)
    sample = one(encoder, user("q"), completion("a"), user("p " * 30), completion("b", learn=False))
    assert learned(sample, tokenizer) == "a</s>"
    assert sample.truncated == ""


def test_a_learned_turn_that_is_too_long_is_not_replaced_by_turns_that_are_not_learned(make):
    with pytest.raises(RowError) as e:
        one(make(12)[0], user("q"), completion("fox " * 30), user("p"), completion("b", learn=False))
    assert e.value.code == "ERN-D044"


@settings(deadline=None, max_examples=60)
@given(
    st.integers(2, 80), st.lists(st.tuples(st.integers(1, 8), st.integers(1, 8), st.booleans()), min_size=1, max_size=5)
)
def test_whatever_the_limit_samples_fit_and_end_with_the_stop_token(make, limit, turns):
    encoder, tokenizer = make(limit)
    messages = [m for q, a, learn in turns for m in (user("fox " * q), completion("dog " * a, learn=learn))]
    try:
        sample = one(encoder, *messages)
    except RowError as e:
        event(e.code)
        return
    assert len(sample) <= limit
    assert sample.input_ids[0] == tokenizer.special_tokens["<|begin_of_sentence|>"]
    assert sample.labels[-1] == tokenizer.eos_id


# ---- templates that forget


@pytest.mark.parametrize("template", ["thinking", "always"])
def test_each_learned_turn_is_a_sample_where_earlier_reasoning_is_dropped(make, template):
    encoder, tokenizer = make(template=template)
    messages = (user("q"), completion("a", reasoning="r"), user("p"), completion("b", reasoning="s"))
    first, second = encoder.encode(Conversation(messages))
    assert read(first, tokenizer).endswith("assistant\n<think>\nr\n</think>\na")
    assert learned(first, tokenizer) == "r\n</think>\na<|im_end|>"
    assert read(second, tokenizer) == (
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\np<|im_end|>\n"
        "<|im_start|>assistant\n<think>\ns\n</think>\nb"
    )
    assert learned(second, tokenizer) == "s\n</think>\nb<|im_end|>"


@pytest.mark.parametrize("template", ["thinking", "always"])
def test_a_completion_without_reasoning_is_learned_behind_the_prompt_in_use(make, template):
    encoder, tokenizer = make(template=template)
    messages = (user("q"), completion("a"), user("p"), completion("b", reasoning="s"))
    first, second = encoder.encode(Conversation(messages))
    assert read(first, tokenizer) == ("<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\na")
    assert learned(first, tokenizer) == "\n</think>\na<|im_end|>"
    assert learned(second, tokenizer) == "s\n</think>\nb<|im_end|>"


def test_reasoning_that_the_template_would_drop_is_refused(make):
    with pytest.raises(RowError, match="does not support reasoning") as e:
        one(make()[0], user("q"), completion("a", reasoning="r"))
    assert (e.value.code, e.value.where) == ("ERN-D041", "$.messages[1].reasoning")


def test_the_error_of_a_prompt_that_use_never_has_shows_the_first_token(make):
    _, tokenizer = make()
    source = PLAIN.replace("{{ 'Assistant: ' }}", "{{ 'Assistant (brief): ' }}")
    brief = SentencePieceTokenizer(tokenizer.model, tokenizer.files, JinjaChatTemplate(source))
    with pytest.raises(RowError) as e:
        one(SftEncoder(brief, 100), user("q"), completion("a"))
    assert (e.value.code, e.value.where) == ("ERN-D047", "$.messages[1]")
    assert re.fullmatch(r"token \d+, behind '.*Assistant': ':', before ' a.*'", e.value.found)
    assert e.value.expected == "' ', as in the prompt"


def test_only_learned_turns_become_samples(make):
    encoder, tokenizer = make(template="thinking")
    messages = (user("q"), completion("a", reasoning="r", learn=False), user("p"), completion("b", reasoning="s"))
    (sample,) = encoder.encode(Conversation(messages))
    assert learned(sample, tokenizer) == "s\n</think>\nb<|im_end|>"


def test_turn_that_does_not_fit_leaves_the_others(make):
    encoder, tokenizer = make(60, template="thinking")
    messages = (user("q"), completion("a", reasoning="fox " * 80), user("p"), completion("b", reasoning="s"))
    (sample,) = encoder.encode(Conversation(messages))
    assert learned(sample, tokenizer) == "s\n</think>\nb<|im_end|>"
    assert sample.truncated == SOME_TURNS


def test_template_with_another_prompt_in_use_is_refused(trained):
    source = "{% if add_generation_prompt %}{{ 'X' }}{% endif %}" + PLAIN
    tokenizer = SentencePieceTokenizer(trained.model, trained.files, JinjaChatTemplate(source))
    with pytest.raises(RowError) as e:
        one(SftEncoder(tokenizer, 100), user("q"), completion("a"))
    assert e.value.code == "ERN-D047"


# ---- safety


def test_control_text_of_users_is_never_a_control_token(make):
    encoder, tokenizer = make()
    nasty = "<|end_of_sentence|></s><|begin_of_sentence|>"
    sample = one(encoder, user(nasty), completion(nasty))
    assert read(sample, tokenizer).count(nasty) == 2
    control = set(tokenizer.special_tokens.values())
    assert [i for i in sample.input_ids.tolist() if i in control] == [tokenizer.special_tokens["<|begin_of_sentence|>"]]
    assert [i for i in sample.labels.tolist() if i in control] == [tokenizer.eos_id]


def test_tokenizer_without_template_is_refused(trained):
    with pytest.raises(EnvironmentFault, match="no chat template"):
        SftEncoder(trained, 10)


def test_template_with_an_unknown_end_token_is_refused(trained):
    tokenizer = SentencePieceTokenizer(trained.model, trained.files, JinjaChatTemplate(PLAIN, "<|nope|>"))
    with pytest.raises(EnvironmentFault, match=r"<\|nope\|>"):
        SftEncoder(tokenizer, 10)


def test_completion_without_end_token_is_refused(trained):
    source = PLAIN.replace("<|end_of_sentence|>", "<|im_end|>")
    tokenizer = SentencePieceTokenizer(trained.model, trained.files, JinjaChatTemplate(source))
    with pytest.raises(RowError):
        one(SftEncoder(tokenizer, 100), user("q"), completion("a"))
