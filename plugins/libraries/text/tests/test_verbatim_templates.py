"""Conversations of one shape are rendered once, where the template provably writes texts as they are; with equal results."""

import pytest
from erniecore_text.jinja_env import ChatEnvironment
from erniecore_text.template import JinjaChatTemplate
from erniecore_text.tokenizer import SentencePieceTokenizer
from erniecore_text.turns import TurnEncoder
from erniecore_text.verbatim_proof import is_verbatim
from hypothesis import given
from hypothesis import strategies as st

from erniecore.errors import RowError
from erniecore.types.records import Message, ToolCall

LOOP = "{% for m in messages %}%s{% endfor %}"
THINKING = (
    "{% set last = namespace(question=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set last.question = loop.index0 %}{% endif %}{% endfor %}"
    "{% if messages and messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}{% endif %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ 'Assistant: ' }}"
    "{% if m['reasoning_content'] and (loop.index0 > last.question or not add_generation_prompt) %}"
    "{{ '<think>\n' ~ m['reasoning_content'] ~ '\n</think>\n' }}{% endif %}{% if m.content %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
    "{{ '<|end_of_sentence|>' }}{% elif m.role != 'system' %}{{ 'User: ' + m.content + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}"
)
PIECES = [
    "",
    " ",
    "  ",
    "\n",
    "a",
    "the fox ",
    "Assistant: ",
    "User: ",
    "<|end_of_sentence|>",
    "</s>",
    "<think>",
    "\u2581",
]
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=6), max_size=5).map("".join).filter(lambda t: "\0" not in t)
CALLS = st.lists(st.builds(ToolCall, st.just("find"), st.sampled_from(['{"a": "b c!"}', "{", '{"x": 1}'])), max_size=1)
TOOLS = st.sampled_from([(), (), ({"name": "find", "description": "a <tool>"},)])


def completions(calls):
    return st.builds(Message, st.just("assistant"), TEXTS, TEXTS, calls.map(tuple), st.booleans())


QUESTIONS = st.builds(Message, st.sampled_from(["user", "system", "tool"]), TEXTS)
TALKS = st.lists(QUESTIONS | completions(st.just([])) | completions(CALLS), min_size=1, max_size=5)


@pytest.fixture(scope="module", params=["plain", "thinking"])
def both(request, plain):
    """A proven template, and the same one that renders every conversation."""
    proven, slow = (JinjaChatTemplate(plain.source if request.param == "plain" else THINKING) for _ in range(2))
    assert proven._verbatim
    slow._verbatim = False
    return proven, slow


@given(talk=TALKS, tools=TOOLS, generation=st.booleans())
def test_renderings_and_segments_are_the_same(both, talk, tools, generation):
    rendered, cut = (
        [[str(getattr(t, name)(talk, tools, add_generation_prompt=generation)) for t in both][i] for i in (0, 1)]
        for name in ("render", "segments")
    )
    assert rendered[0] == rendered[1]
    assert cut[0] == cut[1]


@given(talk=TALKS, tools=TOOLS)
def test_samples_are_the_same(both, trained, talk, tools):
    def sample(template):
        turns = TurnEncoder(SentencePieceTokenizer(trained.model, trained.files, template))
        try:
            completion = turns.encode_turns(talk, tools, "$")
            return completion and [part.tolist() for part in turns.arrays(completion)]
        except RowError as e:
            return str(e)

    assert sample(both[0]) == sample(both[1])


@given(st.lists(TEXTS, min_size=1, max_size=6))
def test_ids_are_dealt_by_the_place_where_a_token_starts(tokenizer, texts):
    out = [[] for _ in texts]
    tokenizer._assign(list(zip(texts, range(len(texts)), strict=True)), out)
    ids = tokenizer.encode("".join(texts))
    spelled = [len(tokenizer.token_bytes[i]) for i in ids]
    ends = [len("".join(texts[: i + 1]).encode()) for i in range(len(texts))]
    starts = [sum(spelled[:k]) - sum(spelled) + ends[-1] for k in range(len(ids))]
    owners = [next((i for i, end in enumerate(ends[:-1]) if start < end), len(texts) - 1) for start in starts]
    assert out == [[token for token, owner in zip(ids, owners, strict=True) if owner == i] for i in range(len(texts))]


def verbatim(source):
    return is_verbatim(ChatEnvironment().parse(source))


@pytest.mark.parametrize(
    "body",
    [
        "{{ m.content }}",
        "{{ 'a' ~ m['content'] + 'b' }}",
        "{% if not m.content and loop.last %}x{% endif %}",
        "{{ m.content if m.content is defined else m.reasoning_content }}",
        "{% if m.role in ['user'] %}{{ messages | length }}{% else %}{{ messages[-1].content }}{% endif %}",
        "{% if m.role == 'user' %}{% continue %}{% endif %}{{ eos_token }}",
    ],
)
def test_templates_that_only_write_texts_are_proven(body):
    assert verbatim(LOOP.replace("%s", body))


@pytest.mark.parametrize(
    "body",
    [
        "{{ m.content | trim }}",
        "{{ 'x' + m.content | upper }}",
        "{{ m.content.strip() }}",
        "{{ m.content[0] }}",
        "{{ m.content * 2 }}",
        "{{ m }}",
        "{{ m | tojson }}",
        "{{ m[key] }}",
        "{{ m.name }}",
        "{{ m.content == 'a' }}",
        "{% if 'a' in m.content %}x{% endif %}",
        "{% if m.content > 'a' %}x{% endif %}",
        "{% if m.content is upper %}x{% endif %}",
        "{% set text = m.content %}{{ text }}",
        "{% set text %}{{ m.content }}{% endset %}{{ text | length }}",
        "{% set ns = namespace(m=m) %}{{ ns.m.content | trim }}",
        "{% for c in m.content %}x{% endfor %}",
        "{% for m in tools %}{{ m.content }}{% endfor %}",
        "{% filter upper %}{{ m.content }}{% endfilter %}",
        "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(m.content) | trim }}",
        "{% call g() %}{{ m.content }}{% endcall %}",
        "{% if loop.changed(m.content) %}x{% endif %}",
        "{{ loop.previtem.content | trim }}",
        "{% set l = loop %}{{ l.previtem.content | trim }}",
        "{{ (m.content if m.role else '') | length }}",
        "{{ (m.content ~ 'x') | length }}",
        "{{ raise_exception(m.content) }}",
        "{% with x = m.content %}{{ x | trim }}{% endwith %}",
    ],
)
def test_templates_that_look_at_texts_are_not(body):
    assert not verbatim(LOOP.replace("%s", body))


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages }}",
        "{{ messages | map(attribute='content') | join }}",
        "{% set rest = messages[1:] %}{{ rest[0].content | trim }}",
        "{{ messages[0].content | trim }}",
        "{% set messages = messages %}{{ messages[0].content }}",
        "{% for m, n in messages %}{{ m }}{% endfor %}",
        "{% for m in messages | reverse %}{{ m.content | trim }}{% endfor %}",
        "{% for m in messages recursive %}{{ m.content }}{% endfor %}",
        "{% for m in messages if m.content == 'a' %}{{ m.content }}{% endfor %}",
        "{% block b %}{{ messages[0].content }}{% endblock %}{{ self.b() | trim }}",
    ],
)
def test_messages_do_not_get_away(source):
    assert not verbatim(source)


def test_shapes_that_are_remembered_are_bounded(plain, monkeypatch):
    template = JinjaChatTemplate(plain.source)
    monkeypatch.setattr("erniecore_text.template.MAX_SHAPES", 3)
    for n in range(1, 9):
        template.render([Message("user", "a")] * n)
    assert len(template._plans) <= 3
