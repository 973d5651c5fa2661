"""Rows of which the process that renders hears before they are wanted: the same texts with fewer waits, each within its own
limits, and a fault is that of its row alone.
"""

import json
import os
import signal

import pytest
from erniecore_preference.encoder import PairEncoder
from erniecore_sft.encoder import SftEncoder
from erniecore_text import render_process
from erniecore_text.template import JinjaChatTemplate
from erniecore_text.tokenizer import SentencePieceTokenizer
from erniecore_text.verbatim import Ask
from render_limits import small_limits
from talker import talker as talker  # the fixture

from erniecore import codes
from erniecore.data import encode
from erniecore.errors import EnvironmentFault
from erniecore.types.records import Conversation, Message, Preference

PROMPT = Ask(generation=True)
#: looks at texts, so every row is rendered; some texts have no end, need all memory, or are refused
SOURCE = """{% for m in messages %}{% if m.content == 'slow' %}{% set ns = namespace(x=3) %}{% for i in range(60) %}\
{% set ns.x = ns.x * ns.x %}{% endfor %}{% elif m.content == 'large' %}\
{% set l = ('a ' * 30000000).split() | map('upper') | list %}\
{% elif m.content == 'refused' %}{{ raise_exception('no') }}{% endif %}\
{{ m.role }}: {{ m.content }}{% if m.role == 'assistant' %}<|end_of_sentence|>{% endif %}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""


@pytest.fixture
def tokenizer(talker):
    def make(trusted=False):
        template = JinjaChatTemplate(SOURCE, file="m/chat_template.jinja", trusted=trusted)
        return SentencePieceTokenizer.from_directory(talker / "tokenizer", template)

    return make


class Source:
    """Rows of JSON as conversations of two messages."""

    file = "rows.jsonl"

    @staticmethod
    def parser(row, origin):
        asked, answer = (Message("user", row["q"]), Message("assistant", row["a"], learn=True))
        return Conversation(messages=(asked, answer), origin=origin)


def encoded(encoder, texts):
    """The samples of rows, and what became of them."""
    rows = [(i, json.dumps({"q": text, "a": f"answer {i}"}).encode()) for i, text in enumerate(texts, 1)]
    job = encode.Job((Source(),), encoder)
    _, dataset, statistics = encode._encode_chunk(job, encode.Chunk(0, 0, rows))
    return [dataset[i].input_ids.tolist() for i in range(len(dataset))], statistics


@pytest.fixture
def waits(monkeypatch):
    """Whether each request that was waited for had gone ahead."""
    found = []
    real = render_process._Keeper._ask

    def ask(keeper, request):
        found.append(request in keeper._ahead or request in keeper._answers)
        return real(keeper, request)

    monkeypatch.setattr(render_process._Keeper, "_ask", ask)
    return found


def test_rows_are_as_in_process_and_have_gone_ahead(tokenizer, waits):
    texts = [f"question {i}" for i in range(60)] + ["refused", "same", "same"]
    here, _ = encoded(SftEncoder(tokenizer(trusted=True), 500), texts)
    assert not waits
    there, statistics = encoded(SftEncoder(tokenizer(), 500), texts)
    assert there == here
    assert len(there) == 62
    assert [error["code"] for error in statistics.errors] == [codes.TEMPLATE_REFUSED]
    assert statistics.errors[0]["line"] == 61
    assert waits.count(True) > 110  # two for each row; a new shape and what is new to the process are asked at once
    assert waits.count(False) < 20


@pytest.mark.parametrize("text", ["slow", "large"])
def test_a_row_beyond_the_limits_is_the_fault_of_that_row(tokenizer, text):
    """The rows before it, and those that had gone ahead behind it, are rendered."""
    with small_limits():
        template = tokenizer().chat_template
        chats = [[Message("user", t)] for t in ["one", "two", text, "three", "four"]]
        for chat in chats:
            template.expect(chat, (), PROMPT)
        assert len(render_process._keeper._ahead) == len(chats)
        for chat in chats:
            if chat[0].content == text:
                with pytest.raises(EnvironmentFault, match="takes too long, or too much memory"):
                    template.render(chat)
            else:
                assert template.render(chat) == f"user: {chat[0].content}assistant: "


def test_a_file_with_such_a_row_is_refused_with_its_place(tokenizer):
    with small_limits(), pytest.raises(EnvironmentFault) as caught:
        encoded(SftEncoder(tokenizer(), 500), ["one", "two", "slow", "three"])
    assert caught.value.where == "m/chat_template.jinja: chat template, line 1, at rows.jsonl:3"


def test_a_process_that_is_killed_with_rows_ahead_loses_none(tokenizer):
    template = tokenizer().chat_template
    chats = [[Message("user", f"text {i}")] for i in range(9)]
    for chat in chats:
        template.expect(chat, (), PROMPT)
    os.kill(render_process._keeper._process.pid, signal.SIGKILL)
    assert [template.render(chat) for chat in chats] == [f"user: text {i}assistant: " for i in range(9)]


def test_large_rows_and_many_rows_do_not_block(tokenizer):
    """More is expected than a socket takes; nobody reads meanwhile."""
    template = tokenizer().chat_template
    chats = [[Message("user", str(i) * 50_000)] for i in range(9)] + [[Message("user", str(i))] for i in range(3000)]
    for chat in chats:
        template.expect(chat, (), PROMPT)
    for chat in (*chats[:20], *chats[-5:]):
        assert template.render(chat) == f"user: {chat[0].content}assistant: "


def test_what_nobody_asks_for_is_forgotten(tokenizer):
    template = tokenizer().chat_template
    for i in range(500):
        template.expect([Message("user", f"text {i}")], (), PROMPT)
        if i % 5 == 0:
            template.render([Message("user", f"other {i}")])
    assert len(render_process._keeper._answers) < 10 * render_process.AHEAD


def test_renderings_that_nobody_came_for_yet_take_bounded_memory(monkeypatch):
    """A short row may become a text of megabytes; what is not kept is rendered again, and each row gets its own."""
    monkeypatch.setattr(render_process, "KEPT_BYTES", 1 << 20)
    source = "{% for i in range(300) %}{{ '" + "x" * 1000 + "' }}{% endfor %}{{ messages[0].content | upper }}"
    template = JinjaChatTemplate(source, file="m/chat_template.jinja")
    chats = [[Message("user", f"text {i}")] for i in range(20)]
    for chat in chats:
        template.expect(chat, (), PROMPT)
    assert len(render_process._keeper._ahead) == 20
    assert template.render([Message("user", "other")]).endswith("xOTHER")  # every answer came before it
    assert not render_process._keeper._ahead
    assert 0 < sum(map(len, render_process._keeper._answers.values())) <= 1 << 20
    assert [template.render(chat)[300_000:] for chat in chats] == [f"TEXT {i}" for i in range(20)]


def test_preferences_go_ahead_too(tokenizer, waits):
    encoder = PairEncoder(tokenizer(), 500)
    yes, no = (Message("assistant", word, learn=True) for word in ("yes", "no"))
    rows = [Preference((Message("user", f"q {i}"),), (yes,), (no,)) for i in range(8)]
    for row in rows:
        encoder.expect(row)
    waits.clear()
    assert all(len(encoder.encode(row)) == 1 for row in rows)
    assert waits.count(True) >= 16
