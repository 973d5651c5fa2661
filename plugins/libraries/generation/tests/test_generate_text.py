"""Completions: characters and stop strings in streams, reasoning and calls, batching. The tokenizer writes UTF-8 bytes."""

import json

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_generation.completions import ParsedCompletion, TextStream, parse_completion, prompt_ids
from erniecore_generation.respond import Responder, generate_text
from hypothesis import given
from hypothesis import strategies as st

from erniecore.errors import UsageError
from erniecore.types.model import Features
from erniecore.types.records import Message, ToolCall
from erniecore.types.text import Segment

SPECIAL = {"<pad>": 256, "</s>": 257, "<sep>": 258, "<think>": 259, "</think>": 260}


class Template:
    source, turn_end, stop = "", "<sep>", "</s>"

    def __init__(self, tail="A:"):
        self.tail = tail

    def segments(self, messages, tools=(), *, add_generation_prompt=False, thinking=None):
        parts = [Segment(m.content, trusted=False) for m in messages]
        return [*parts, Segment(self.tail, trusted=True)] if add_generation_prompt else parts

    def render(self, messages, tools=(), *, add_generation_prompt=True, thinking=None):
        asked = {"add_generation_prompt": add_generation_prompt, "thinking": thinking}
        return "".join(s.text for s in self.segments(messages, tools, **asked))


class Switched(Template):
    """Its prompt has as many marks as the switch says."""

    def segments(self, messages, tools=(), *, add_generation_prompt=False, thinking=None):
        self.tail = {None: "?", True: "?" * 3, False: "?" * 5}[thinking]
        return super().segments(messages, tools, add_generation_prompt=add_generation_prompt)


class Bytes:
    """One token per byte, then the special tokens."""

    vocab_size, pad_id, bos_id, eos_id = 261, 256, -1, 257
    special_tokens = SPECIAL

    def __init__(self, template=None):
        self.chat_template = template

    def encode(self, text):
        return list(text.encode())

    def encode_segments(self, segments):
        return [[SPECIAL[s.text]] if s.trusted and s.text in SPECIAL else self.encode(s.text) for s in segments]

    def decode(self, ids, *, skip_special=True):
        names = {i: t for t, i in SPECIAL.items()}
        raw = b"".join(bytes([i]) if i < 256 else b"" if skip_special else names[i].encode() for i in ids)
        return raw.decode(errors="replace")


class Parrot(paddle.nn.Layer):
    """Says a fixed completion that depends on the first byte of the prompt; the position is all it looks at."""

    def __init__(self, completions):
        super().__init__()
        self.completions = completions
        self.architecture = {"vocab_size": 261, "num_hidden_layers": 1, "max_position_embeddings": 64}

    def features(self, input_ids, *, position_ids, attention_mask=None, cache=None):
        state = (input_ids * 0 + position_ids).astype("float32").unsqueeze(-1).unsqueeze(-1)
        first = input_ids.numpy()[:, :, None, None].astype("float32")
        _, values = cache.update(0, state, paddle.to_tensor(first))
        prompt_start = values.numpy()[:, :, 0, 0]
        mask = np.ones_like(prompt_start) if attention_mask is None else attention_mask.numpy()
        out = np.zeros((*input_ids.shape, 261), dtype="float32")
        for row in range(len(out)):
            real = prompt_start[row][mask[row] == 1]
            length, said = int(real[0]) - ord("0"), 0
            said = len(real) - length
            completion = self.completions[length]
            out[row, -1, completion[said] if said < len(completion) else 0] = 1
        return Features(hidden=paddle.to_tensor(out))

    def logits(self, hidden):
        return hidden


def stream(tokens, stop=()):
    text = TextStream(Bytes(), stop)
    chunks = [text.push(t) for t in tokens] + [text.close()]
    return chunks, text


@given(st.text(max_size=30))
def test_pieces_of_any_text_join_to_it_and_never_split_a_character(value):
    chunks, text = stream(value.encode())
    assert "".join(chunks) == text.text == value
    if "\N{REPLACEMENT CHARACTER}" not in value:
        assert not any("\N{REPLACEMENT CHARACTER}" in chunk for chunk in chunks)


def test_a_character_appears_with_its_last_byte():
    chunks, _ = stream("文a".encode())
    assert chunks == ["", "", "文", "a", ""]


def test_bytes_that_never_become_a_character_show_at_the_end():
    chunks, text = stream(b"a\xe6\x96")
    assert chunks[:3] == ["a", "", ""]
    assert text.text.startswith("a\N{REPLACEMENT CHARACTER}")


@given(st.text(alphabet="abE N", max_size=20), st.lists(st.text(alphabet="abE N", min_size=1, max_size=4), max_size=3))
def test_stop_strings_cut_where_a_search_in_the_whole_text_would(value, stops):
    chunks, text = stream(value.encode(), stops)
    cuts = [value.find(s) for s in stops if s in value]
    # the first stop string to be complete ends the text, at the earliest start among those complete then
    ends = [value.find(s) + len(s) for s in stops if s in value]
    if not cuts:
        assert (text.stopped, text.text) == (False, value)
    else:
        shown = value[: min(ends)]
        assert text.text == shown[: min(shown.find(s) for s in stops if s in shown)]
        assert text.stopped
    assert "".join(chunks) == text.text


def test_what_may_become_a_stop_string_waits():
    chunks, text = stream(b"xEN.ENDy", ["END"])
    assert chunks == ["x", "", "", "EN.", "", "", "", "", ""]
    assert text.text == "xEN."


def test_hidden_control_tokens_do_not_show_and_structural_ones_do():
    _, text = stream([65, SPECIAL["<sep>"], SPECIAL["</think>"], 66])
    assert text.text == "A</think>B"


@pytest.mark.parametrize(
    ("text", "thinking", "content", "reasoning"),
    [
        ("plain  ", False, "plain  ", ""),
        ("why\n</think>\n\nso", True, "so", "why"),
        ("<think>\nwhy\n</think>\nso", False, "so", "why"),
        ("cut off in thou", True, "", "cut off in thou"),
        ("why\n</think>\n<response>\nso\n</response>\n", True, "so", "why"),
        ("why</think><response>so", True, "so", "why"),
        ("a </think> b", False, "a </think> b", ""),
        ("about <think> tags", False, "about <think> tags", ""),
    ],
)
def test_reasoning_is_split_off(text, thinking, content, reasoning):
    completion = parse_completion(text, thinking=thinking)
    assert (completion.content, completion.reasoning, completion.tool_calls) == (content, reasoning, ())


def test_tool_calls_are_parsed_and_broken_ones_stay_visible():
    call = json.dumps({"name": "weather", "arguments": {"city": "北京"}}, ensure_ascii=False)
    text = f"Wait.\n<tool_call>\n{call}\n</tool_call>\n<tool_call>{{broken</tool_call>"
    completion = parse_completion(text)
    assert completion.tool_calls == (ToolCall("weather", '{"city": "北京"}'),)
    assert completion.content == "Wait.\n\n<tool_call>{broken</tool_call>"


@pytest.mark.parametrize("bad", ["[1]", '{"name": 3}', '"x"', ""])
def test_json_that_is_no_call_is_not_one(bad):
    text = f"<tool_call>{bad}</tool_call>"
    assert parse_completion(text) == ParsedCompletion(text)


def test_long_whitespace_takes_no_longer_than_other_text():
    spaces = " " * 50_000
    assert parse_completion(f"<tool_call>{spaces}x") == ParsedCompletion(f"<tool_call>{spaces}x")
    assert parse_completion(f"<response>a{spaces}b{spaces}").content == f"a{spaces}b"


def test_only_the_template_can_open_the_thinking_part():
    tokenizer = Bytes()
    asked = [Message("user", "<think>")]
    assert prompt_ids(tokenizer, Template("<think>"), asked) == ([*b"<think>", SPECIAL["<think>"]], True)
    assert prompt_ids(tokenizer, Template("A:"), asked)[1] is False


COMPLETIONS = {1: [*b"one", 257], 2: [*b"two STOP three", 257], 3: [*"三".encode()] * 30, 4: [*b"x", 260, *b"y", 258]}


def ask(prompts, template=None, **options):
    return generate_text(Parrot(COMPLETIONS), Bytes(template), prompts, **options)


def test_completions_end_for_the_reason_they_report():
    options = {"stop": ["STOP"], "max_new_tokens": 9}
    got = ask(["1", "2x", "3xx", "4xxx"], Template(), **options)
    assert [(c.text, c.finish_reason) for c in got] == [
        ("one", "stop"), ("two ", "stop-string"), ("三三三", "length"), ("x</think>y", "stop"),
    ]  # fmt: skip
    assert [c.prompt_tokens for c in got] == [1, 2, 3, 4]
    assert got[0].ids == (*b"one", 257)
    assert all(c.seconds > 0 and c.tokens_per_s > 0 for c in got)


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_batches_give_what_single_prompts_give(batch_size):
    prompts = ["2x", "1", "3xx", "1", "4xxx"]
    texts = [c.text for c in ask(prompts, batch_size=batch_size, max_new_tokens=6)]
    assert texts == [ask([p], max_new_tokens=6)[0].text for p in prompts]


def test_streamed_pieces_carry_the_prompts_index():
    chunks = {0: "", 1: "", 2: ""}

    def show(index, chunk):
        chunks[index] += chunk

    got = ask(["1", "2x", "3xx"], batch_size=2, max_new_tokens=7, on_text=show)
    assert [c.text for c in got] == list(chunks.values())


def test_messages_need_a_template_and_use_it():
    with pytest.raises(UsageError, match="--raw"):
        ask([[Message("user", "1")]])
    [got] = ask([[Message("user", "4x")]], Template("<think>"), max_new_tokens=2)
    assert got.prompt_tokens == 3


@pytest.mark.parametrize(("thinking", "tokens"), [(None, 3), (True, 5), (False, 7)])
def test_reasoning_is_asked_for_where_the_template_has_a_switch(thinking, tokens):
    [got] = ask([[Message("user", "4x")]], Switched(), max_new_tokens=2, thinking=thinking)
    assert got.prompt_tokens == tokens


@pytest.mark.parametrize(("thinking", "option"), [(True, "--thinking"), (False, "--no-thinking")])
def test_a_template_without_a_switch_refuses_to_be_told(thinking, option):
    with pytest.raises(UsageError, match="no switch for reasoning") as caught:
        ask([[Message("user", "4x")]], Template(), thinking=thinking)
    assert caught.value.where == option


def test_without_a_limit_the_context_decides():
    [got] = ask(["3xx"])
    assert (got.finish_reason, len(got.ids)) == ("length", 61)


@pytest.mark.parametrize(("prompt", "message"), [("", "prompt 0"), ("1" * 64, "longer than the model's context")])
def test_impossible_prompts_are_refused(prompt, message):
    with pytest.raises(UsageError, match=message):
        ask([prompt])


def test_end_tokens_can_be_passed_over():
    [ended], [whole] = (ask(["1"], max_new_tokens=9, ignore_eos=ignored) for ignored in (False, True))
    assert (ended.finish_reason, ended.ids[-1], len(ended.ids)) == ("stop", 257, 4)
    assert (whole.finish_reason, whole.ids[:4], len(whole.ids)) == ("length", ended.ids, 9)


def test_stop_ids_are_collected_from_everywhere():
    responder = Responder(Parrot({}), Bytes(Template()), generation={"eos_token_id": [7]})
    assert responder.stop_ids == {7, 257, 258}
