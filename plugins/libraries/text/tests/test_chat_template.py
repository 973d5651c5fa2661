"""Rendering and its pieces; what a template may not do."""

import json
import pickle

import pytest
from erniecore_text import jinja_env
from erniecore_text.template import JinjaChatTemplate
from hypothesis import given
from hypothesis import strategies as st

from erniecore import codes
from erniecore.errors import DataError, RowError
from erniecore.types.records import Message, ToolCall

CHAT = [Message("system", "Be brief."), Message("user", "2+2?"), Message("assistant", "4"), Message("user", "and 3?")]
#: reasoning of earlier turns is only rendered when no prompt is asked for; tools as JSON
THINKING = (
    "{% set ns = namespace(q=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.q = loop.index0 %}{% endif %}"
    "{% endfor %}{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}"
    "{% if m.role == 'user' %}{{ '<|im_start|>user\n' + m.content + '<|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>assistant\n' }}"
    "{% if m.reasoning_content and (loop.index0 > ns.q or not add_generation_prompt) %}"
    "{{ '<think>\n' + m.reasoning_content + '\n</think>\n' }}{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '<tool_call>' + c.function.name + c.function.arguments | tojson }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)
TEXTS = st.text(st.sampled_from('ab \n<|>{}%"\\é你') | st.characters(exclude_categories=("Cs",)), max_size=12)


@pytest.fixture(scope="module")
def thinking():
    return JinjaChatTemplate(THINKING, "<|im_end|>", "<|im_end|>")


def test_render(plain):
    wanted = "<|begin_of_sentence|>Be brief.\nUser: 2+2?\nAssistant: 4<|end_of_sentence|>User: and 3?\nAssistant: "
    assert plain.render(CHAT) == wanted


def test_segments_tell_who_wrote_what(plain):
    pieces = [(s.text, s.trusted, s.message, s.generated) for s in plain.segments(CHAT)]
    assert pieces == [
        ("<|begin_of_sentence|>", True, -1, False),
        ("Be brief.", False, 0, False),
        ("\nUser: ", True, -1, False),
        ("2+2?", False, 1, False),
        ("\nAssistant: ", True, -1, False),
        ("4", False, 2, True),
        ("<|end_of_sentence|>", True, 2, True),
        ("User: ", True, -1, False),
        ("and 3?", False, 3, False),
        ("\n", True, -1, False),
    ]


@given(st.lists(TEXTS, min_size=1, max_size=5), st.booleans())
def test_pieces_joined_are_the_rendering(plain, texts, generation):
    messages = [Message("assistant" if i % 2 else "user", t) for i, t in enumerate(texts)]
    pieces = plain.segments(messages, add_generation_prompt=generation)
    assert "".join(s.text for s in pieces) == plain.render(messages, add_generation_prompt=generation)
    for i, text in enumerate(texts):
        assert "".join(s.text for s in pieces if s.message == i and not s.trusted) == text


@given(TEXTS, TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=2))
def test_texts_of_tools_and_calls_are_never_trusted(thinking, question, description, arguments):
    call = ToolCall("f", json.dumps(arguments))
    messages = [Message("user", question), Message("assistant", "", reasoning="r", tool_calls=(call,))]
    tools = [{"name": "f", "description": description}]
    pieces = thinking.segments(messages, tools)
    assert "".join(s.text for s in pieces) == thinking.render(messages, tools, add_generation_prompt=False)
    trusted = "".join(s.text for s in pieces if s.trusted)
    assert trusted.count("<") == 7  # the template's own: im_start and im_end twice, think, /think, tool_call
    assert trusted.count("<|im_end|>") == 2


def test_control_text_in_a_tool_stays_untrusted(thinking):
    tools = [{"name": "f", "description": 'a "<|im_end|>" b', "parameters": {"<|im_start|>": 1}}]
    pieces = thinking.segments([Message("user", "x")], tools)
    assert [s.text for s in pieces if not s.trusted] == ['a \\"<|im_end|>\\" b', "<|im_start|>", "x"]


def test_generated_starts_behind_the_generation_prompt(thinking):
    pieces = thinking.segments([Message("user", "q"), Message("assistant", "a", reasoning="r")])
    assert "".join(s.text for s in pieces if s.generated) == "r\n</think>\na<|im_end|>"


def test_completion_without_the_rest_of_the_generation_prompt_starts_behind_what_they_share(thinking):
    pieces = thinking.segments([Message("user", "q"), Message("assistant", "<b>a")])
    assert "".join(s.text for s in pieces if s.generated) == "<b>a<|im_end|>"


def test_earlier_completion_that_the_rendering_changes_is_not_generated(thinking):
    chat = [Message("user", "q"), Message("assistant", "a", reasoning="r"), Message("user", "p")]
    pieces = thinking.segments(chat, add_generation_prompt=True)
    assert not any(s.generated for s in pieces)


def test_template_that_strips_texts_is_understood():
    template = JinjaChatTemplate("{% for m in messages %}{{ m.content | trim }};{% endfor %}")
    pieces = template.segments([Message("user", "  a b \n")])
    assert [(s.text, s.trusted) for s in pieces if not s.trusted] == [("a b", False)]


@pytest.mark.parametrize(
    "change", ["m.content | upper", "m.content[1:]", "m.content | replace('b', 'c')", "m.content | length"]
)
def test_template_that_changes_texts_is_refused(change):
    template = JinjaChatTemplate("{% for m in messages %}{{ " + change + " }}{% endfor %}")
    with pytest.raises(RowError) as e:
        template.segments([Message("user", "abc")])
    assert e.value.code == codes.TEMPLATE_CHANGES_TEXT


def test_raise_exception_refuses_the_row():
    template = JinjaChatTemplate("{% if tools %}{{ raise_exception('no tools here') }}{% endif %}")
    with pytest.raises(RowError, match="no tools here") as e:
        template.render([Message("user", "a")], [{"name": "f"}])
    assert e.value.code == codes.TEMPLATE_REFUSED


def test_json_is_written_as_servers_write_it():
    template = JinjaChatTemplate("{{ tools | tojson }}")
    assert template.render([], [{"name": "é<b>'你", "n": 1.5}]) == '[{"name": "é<b>\'你", "n": 1.5}]'


def test_blocks_are_trimmed():
    assert JinjaChatTemplate("  {% if true %}\nx\n  {% endif %}\n").render([]) == "x\n"


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(1000) %}{% for j in range(2000) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{% for i in range(100) %}{{ f() }}{% endfor %}{% endmacro %}{{ f() }}",
        "{{ range(10000000) }}",
        "{{ 'x' * 100000000 }}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ '%99999999d' % 1 }}",
        "{% set ns = namespace(x='abcdefgh') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='abcdefgh') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    ],
    ids=["loops", "recursion", "range", "repeat", "power", "format", "concat", "plus"],
)
def test_endless_or_huge_templates_are_stopped(source):
    with pytest.raises(DataError) as e:
        JinjaChatTemplate(source).render([])
    assert e.value.code == codes.TEMPLATE_BROKEN


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ '{:99999999}'.format(1) }}",
        "{{ '%99999999d' | format(1) }}",
        "{{ '%*d' | format(99999999, 1) }}",
        "{{ raise_exception.__globals__.keys() }}",
    ],
)
def test_sandbox_holds(source):
    with pytest.raises(DataError):
        JinjaChatTemplate(source).render([Message("user", "a")])


def test_removed_filters_do_not_compile():
    with pytest.raises(DataError) as e:
        JinjaChatTemplate("{{ 'a' | center(99999999) }}")
    assert e.value.code == codes.TEMPLATE_BROKEN


def test_syntax_error_names_the_line():
    with pytest.raises(DataError) as e:
        JinjaChatTemplate("\n{% if %}")
    assert "line 2" in e.value.where


def test_a_template_in_the_style_of_published_ones_renders():
    """With a macro over parts, numbers that are formatted, and a switch inside of options."""
    template = JinjaChatTemplate(
        "{%- set on = options.get('thinking_mode', true) in ['open', true] if options is defined else true -%}"
        "{%- macro parts(content) %}{% if content is string %}{{ content }}{% else %}{% for p in content %}"
        "{% if p.marks is defined %}{% for m in p.marks %}[{{ '%.1f' | format(m) }}]{% endfor %}{% endif %}"
        "{% endfor %}{% endif %}{% endmacro -%}"
        "{%- for m in messages -%}{{ 'User: ' + parts(m.content) }}{%- endfor -%}"
        "{{ 'Assistant: ' + ('<think>' if on else '') }}"
    )
    assert [template.render([Message("user", "a")], thinking=t) for t in (None, True, False)] == [
        "User: aAssistant: <think>",
        "User: aAssistant: <think>",
        "User: aAssistant: ",
    ]
    assert JinjaChatTemplate("{{ '%5.1f%%' | format(2.25) }}").render([]) == "  2.2%"


def test_budget_is_per_rendering():
    template = JinjaChatTemplate("{% for i in range(60000) %}{% endfor %}")
    for _ in range(jinja_env.MAX_STEPS // 60_000 + 2):
        assert template.render([]) == ""


def test_pickled_template_renders_the_same(plain):
    again = pickle.loads(pickle.dumps(plain))
    assert again.render(CHAT) == plain.render(CHAT)
    assert (again.turn_end, again.stop) == (plain.turn_end, plain.stop)
