"""Chat templates out of Jinja's grammar: each rendering ends within the limits as the text of a plain sandbox, or as an error
with a name.

The same examples each time; ``make fuzz`` tries others.
"""

import re

import pytest
from erniecore_text import render_process
from erniecore_text.rendering import RenderFault
from erniecore_text.template import JinjaChatTemplate
from fuzzing import fuzzed, kept
from hypothesis import example, given
from hypothesis import strategies as st
from render_limits import small_limits

from erniecore.errors import DataError, EnvironmentFault
from erniecore.types.records import Message

CHAT = [Message("system", "Be <b>brief</b>."), Message("user", "2+2?\n"), Message("assistant", "4", reasoning="é")]
TOOLS = [{"name": "f", "parameters": {"b": [1, 2.5, None, True], "a": 'ü"'}}]
#: jinja2's own sandbox, with what transformers adds, in the same kind of process
PLAIN = """
import json as _json
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from erniecore_text import render_server
def _raise(message):
    raise TemplateError(message)
class Plain:
    verbatim = False
    def __init__(self, source, prefix, variables):
        made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        made.filters["tojson"] = lambda value, **options: _json.dumps(value, ensure_ascii=False, **options)
        made.globals["raise_exception"] = _raise
        self.template = made.from_string(source)
    def text(self, messages, tools, asked):
        return self.template.render(messages=messages, tools=tools, **asked)
render_server.Rendering = Plain
def _warm_up():
    import jinja2.debug, unicodedata
    Plain("{{ '\\\\u00e9' }}", "", {}).text([], [], {})
render_server._warm_up = _warm_up
"""
ORACLE = render_process._START.replace("from erniecore_text.render_server", PLAIN + "from erniecore_text.render_server")
#: what our sandbox refuses although a plain one renders it
REFUSED = ("**", "%", "range(", "center", "wordwrap", "ljust", "zfill", "format", "encode", "pprint", "indent=")

NAMES = st.sampled_from(
    ["messages", "tools", "m", "x", "ns", "loop", "loop.index", "ns.x", "m.content", "m.role", "undefined_name"]
)
NUMBERS = st.sampled_from(["0", "1", "-1", "2", "3", "7", "100", "100000", "1000000000", "1.5", "true", "none"])
STRINGS = st.sampled_from(["''", "'a'", "'ab\\n c'", "'\\u00e9<'", "'%s'", "'content'", "'role'", "'in'", "'upper'"])
FILTERS = st.sampled_from(
    """abs batch(3) batch(1000000000) capitalize count default('d') dictsort escape first float int items join join(',')
    last length list lower map('upper') map(attribute='role') max min reject('odd') reverse replace('a','bb') round select
    selectattr('role') slice(2) slice(1000000000) sort sort(reverse=true) string striptags sum sum(start=[]) title tojson
    trim unique upper urlencode wordcount indent indent(500) truncate(5) center(9) center(1000000000) safe""".split()  # noqa: SIM905
)
METHODS = st.sampled_from(
    """upper() lower() strip() split() split('a') replace('a','aaaa') join(['b','c']) startswith('a') title() count('a')
    items() keys() append(1) ljust(1000000000) zfill(9) encode() __class__ format(1)""".split()  # noqa: SIM905
)
TESTS = st.sampled_from(
    ["defined", "none", "string", "odd", "iterable", "mapping", "in [1]", "divisibleby 2", "sameas true", "eq 1"]
)
OPERATORS = st.sampled_from(["+", "-", "*", "*", "/", "//", "~", "==", "<", "and", "or", "in", "not in", "**", "%"])


def compound(inner):
    return st.one_of(
        st.tuples(inner, OPERATORS, inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(inner, FILTERS).map(lambda t: f"({t[0]})|{t[1]}"),
        st.tuples(inner, METHODS).map(lambda t: f"({t[0]}).{t[1]}"),
        st.tuples(inner, TESTS).map(lambda t: f"({t[0]} is {t[1]})"),
        st.tuples(inner, inner).map(lambda t: f"({t[0]})[{t[1]}]"),
        st.tuples(inner, NUMBERS, NUMBERS).map(lambda t: f"({t[0]})[{t[1]}:{t[2]}]"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
        st.lists(inner, max_size=3).map(lambda t: f"[{', '.join(t)}]"),
        st.tuples(inner, inner).map(lambda t: f"{{'k': {t[0]}, {t[1]}: 1}}"),
        inner.map(lambda t: f"range({t})"),
        inner.map(lambda t: f"f({t})"),
        inner.map(lambda t: f"raise_exception({t})"),
    )


EXPRESSIONS = st.recursive(NAMES | NUMBERS | STRINGS, compound, max_leaves=6)


def block(inner):
    body = st.lists(inner, min_size=1, max_size=3).map("".join)
    return st.one_of(
        st.tuples(st.sampled_from(["messages", "tools", "[1, 2, 3]", "range(9)", "range(50000)", "'abc'"]), body).map(
            lambda t: f"{{% for m in {t[0]} %}}{t[1]}{{% endfor %}}"
        ),
        st.tuples(EXPRESSIONS, body, body).map(lambda t: f"{{% if {t[0]} %}}{t[1]}{{% else %}}\n{t[2]}{{% endif %}}"),
        body.map(lambda t: f"{{% macro f(x=1) %}}{t}{{% endmacro %}}{{{{ f(2) }}}}"),
        body.map(lambda t: f"{{% set x %}}{t}{{% endset %}}{{{{ x }}}}"),
        st.tuples(FILTERS, body).map(lambda t: f"{{% filter {t[0]} %}}{t[1]}{{% endfilter %}}"),
        body.map(lambda t: f"{{% call f() %}}{t}{{% endcall %}}"),
    )


LEAVES = st.one_of(
    EXPRESSIONS.map(lambda e: f"{{{{ {e} }}}}"),
    EXPRESSIONS.map(lambda e: f"{{%- set x = {e} -%}}"),
    EXPRESSIONS.map(lambda e: f"{{% set ns.x = {e} %}}"),
    st.just("{% set ns.x = ns.x * ns.x %}"),
    st.just("{% set ns.x = ns.x ~ ns.x %}"),
    st.just("{% break %}"),
    st.sampled_from(["text\n", "  ", "<|im_end|>\n", "{# note #}", "{{", "%}"]),
)
TEMPLATES = st.lists(st.recursive(LEAVES, block, max_leaves=5), min_size=1, max_size=4).map(
    lambda parts: "{% set ns = namespace(x=3) %}" + "".join(parts)
)


class Oracle:
    """The process with the plain sandbox."""

    def __init__(self):
        self.process = None

    def text(self, source):
        """What a plain sandbox renders; ``None`` where it does not, or takes too long."""
        if self.process is None or not self.process.alive():
            self.process = render_process._Process(ORACLE)
        keeper = render_process._Keeper()
        keeper._process = self.process
        try:
            asked = ("open", 1, source, "", {}), ("text", 1, MESSAGES, TOOLS, {"add_generation_prompt": True})
            answers = [render_process._checked(keeper._ask(render_process.marshal.dumps(one))) for one in asked]
        except (RenderFault, render_process._Ended):
            return None
        return answers[1].decode("utf-8", "surrogatepass")


MESSAGES = [
    {"role": m.role, "content": m.content, **({"reasoning_content": m.reasoning} if m.reasoning else {})} for m in CHAT
]


@pytest.fixture(scope="module")
def oracle():
    with small_limits():
        made = Oracle()
        yield made
    if made.process is not None:
        made.process.end()


def ours_of(source):
    """The text or ``None``, and the code of the error."""
    try:
        return JinjaChatTemplate(source, file="m/chat_template.jinja").render(CHAT, TOOLS), ""
    except (DataError, EnvironmentFault) as error:
        return None, error.code


@fuzzed(60)
@given(TEMPLATES)
@example("{{ messages|tojson }}{% for m in messages %}{{ m.content|trim }}{% endfor %}")
@example("{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}")
@kept("source")
def test_a_rendering_is_that_of_a_plain_sandbox_or_an_error_with_a_name(oracle, source):
    ours, code = ours_of(source)
    assert ours is not None or code in ("ERN-D040", "ERN-D041", "ERN-E030")
    plain = oracle.text(source)
    if plain is None or len(plain) > 100_000:
        return
    if ours is None:
        assert any(word in source for word in REFUSED), (source, plain)
    else:
        assert _without_addresses(ours) == _without_addresses(plain)


def _without_addresses(text):
    """A generator prints where it is in its process's memory."""
    return re.sub(r" at 0x[0-9a-f]+>", " at …>", text)
