"""Text that looks like a special token stays text, wherever in a row of whichever format it stands."""

import copy

import pytest
from erniecore_formats.plugin import alpaca, erniekit, messages, preference, query_response, text
from erniecore_text import JinjaChatTemplate, SentencePieceTokenizer
from erniecore_text.training import train

from erniecore.api import RowError
from erniecore.api.data import Document, Origin, Preference

TEMPLATE = (
    "{{ '<|begin_of_sentence|>' }}{% if tools %}{{ tools | tojson + '\n' }}{% endif %}{% for m in messages %}"
    "{{ m.role + ': ' + m.content }}{% if m.reasoning_content %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}"
    "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}"
    "{{ '<|end_of_sentence|>' if m.role == 'assistant' else '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
HERE = Origin("f.jsonl", 1)
TOOLS = {
    "messages": [
        {"role": "user", "content": "how warm is it"},
        {
            "role": "assistant",
            "content": "let me see",
            "reasoning_content": "a tool would help",
            "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "the big one"}}}],
        },
        {"role": "tool", "content": "three degrees now"},
        {"role": "assistant", "content": "it is cold"},
    ],
    "tools": [{"type": "function", "function": {"name": "weather", "description": "of a city"}}],
}
ROWS = [(p, row) for p in (alpaca, erniekit, messages, preference, query_response, text) for row in p.examples]
ROWS.append((messages, TOOLS))


@pytest.fixture(scope="module")
def tokenizer():
    made = train(["the quick brown fox jumps over the lazy dog and rests " * 9], 320)
    return SentencePieceTokenizer(made.model, made.files, JinjaChatTemplate(TEMPLATE))


def places(value, path=()):
    """Paths of the free texts in a row."""
    if isinstance(value, str):
        if " " in value:
            yield path
        return
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*path, key))


def changed(row, path, extra):
    out = place = copy.deepcopy(row)
    for key in path[:-1]:
        place = place[key]
    first, _, rest = place[path[-1]].partition(" ")
    place[path[-1]] = f"{first} {extra} {rest}"
    return out


def control_tokens(tokenizer, plugin, row):
    """Control tokens in what the model reads of a row, in order."""
    record = plugin.ernie_parse_row(config=plugin.Config(), row=row, origin=HERE)
    if isinstance(record, Document):
        runs = [tokenizer.encode(record.text)]
    elif isinstance(record, Preference):
        talks = [record.prompt + side for side in (record.chosen, record.rejected)]
        runs = [
            ids for t in talks for ids in tokenizer.encode_segments(tokenizer.chat_template.segments(t, record.tools))
        ]
    else:
        segments = tokenizer.chat_template.segments(record.messages, record.tools)
        runs = tokenizer.encode_segments(segments)
    control = set(tokenizer.special_tokens.values())
    return [i for ids in runs for i in ids if i in control]


@pytest.mark.parametrize("index", range(len(ROWS)))
def test_control_tokens_come_from_the_template_only(tokenizer, index):
    plugin, row = ROWS[index]
    before = control_tokens(tokenizer, plugin, row)
    found = list(places(row))
    assert found
    for path in found:
        try:
            control_tokens(tokenizer, plugin, changed(row, path, "word"))
        except RowError:  # whatever is added there, the row is no longer one
            continue
        for word in tokenizer.special_tokens:
            try:
                after = control_tokens(tokenizer, plugin, changed(row, path, word))
            except RowError:  # half of a thinking block in an answer is refused, not guessed at
                assert word in ("<think>", "</think>")
                continue
            assert after == before, (path, word)
