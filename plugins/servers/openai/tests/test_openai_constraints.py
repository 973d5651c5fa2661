"""Completions in a form that was asked for: they have it whatever the model prefers, alone and beside others, and what no text
can have is refused with its place."""

import asyncio
import json
import re

import httpx
import jsonschema
import numpy as np
import pytest
from erniecore_openai.config import OpenAIConfig
from erniecore_openai.constraints import GrammarConstraint, Vocabulary
from erniecore_openai.grammars import grammar_of, regex_term
from erniecore_openai.serving import read_model
from erniecore_openai.state import Serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai_client import Client

NAMES = st.text('abçd"\\ 北', min_size=1, max_size=3)
LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(
        lambda a, b: {"type": "integer", "minimum": a, "maximum": a + b}, st.integers(-99, 99), st.integers(0, 9)
    ),
    st.builds(lambda most: {"type": "string", "maxLength": most}, st.integers(0, 4)),
    st.builds(lambda values: {"enum": values}, st.lists(NAMES, min_size=1, max_size=3, unique=True)),
    st.just({"type": "string", "pattern": "^[a-f]{2}-[0-9]$"}),
)


def nested(inner):
    return st.one_of(
        st.builds(lambda item, most: {"type": "array", "items": item, "maxItems": most}, inner, st.integers(0, 2)),
        st.builds(lambda several: {"anyOf": several}, st.lists(inner, min_size=1, max_size=2)),
        st.dictionaries(NAMES, st.tuples(inner, st.booleans()), max_size=3).map(
            lambda fields: {
                "type": "object",
                "properties": {name: schema for name, (schema, _) in fields.items()},
                "required": [name for name, (_, needed) in fields.items() if needed],
                "additionalProperties": False,
            }
        ),
    )


SCHEMAS = st.recursive(LEAVES, nested, max_leaves=5)


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schema=SCHEMAS, seed=st.integers(0, 99), most=st.sampled_from([600, 600, 5]))
def test_answers_keep_to_any_schema(client, schema, seed, most):
    status, answer = client.chat(response_format=schema_format(schema), temperature=2, seed=seed, max_tokens=most)
    assert status == 200, answer
    (choice,) = answer["choices"]
    if choice["finish_reason"] == "length":
        assert answer["usage"]["completion_tokens"] == most
    else:
        jsonschema.validate(json.loads(choice["message"]["content"]), schema)
    assert most == 5 or choice["finish_reason"] == "stop"


ORDER = {
    "type": "object",
    "properties": {
        "fruit": {"enum": ["apple", "pear"]},
        "count": {"type": "integer", "minimum": 1, "maximum": 500},
        "note": {"type": "string", "maxLength": 9},
    },
    "required": ["fruit", "count", "note"],
    "additionalProperties": False,
}
FORMS = {
    "response_format": schema_format(ORDER),
    "guided_json": json.dumps(ORDER),
    "structured_outputs": {"json": ORDER},
    "guided_regex": r"\d{4}-\d\d, (yes|no)",
    "guided_choice": ["first", "second", " third"],
}


def forms():
    for name, value in FORMS.items():
        yield {name: value}
    yield {"structured_outputs": {"regex": FORMS["guided_regex"]}}
    yield {"structured_outputs": {"choice": FORMS["guided_choice"]}}


def fits(body, text):
    (value,) = body.values()
    inner = next(iter(value.values())) if isinstance(value, dict) else value
    if isinstance(inner, list):
        return text in inner
    if isinstance(inner, str) and inner == FORMS["guided_regex"]:
        return re.fullmatch(inner, text)
    return jsonschema.validate(json.loads(text), ORDER) is None


@pytest.mark.parametrize("body", list(forms()), ids=lambda body: "-".join([*body, str(next(iter(body.values())))[:12]]))
def test_completions_in_a_form_are_the_same_streamed_and_whole(client, body):
    asked = {"temperature": 1.5, "seed": 3, "n": 2, "max_tokens": 200, **body}
    _, whole = client.chat(**asked)
    _, chunks = client.chat(**asked, stream=True)
    for choice in whole["choices"]:
        assert choice["finish_reason"] == "stop"
        assert fits(body, choice["message"]["content"])
        parts = [p for chunk in chunks for p in chunk["choices"] if p["index"] == choice["index"]]
        assert "".join(p["delta"].get("content", "") for p in parts) == choice["message"]["content"]
    if "response_format" not in body:
        _, answer = client.complete(["copy", "who"], **{name: asked[name] for name in ("seed", "max_tokens", *body)})
        assert all(fits(body, choice["text"]) for choice in answer["choices"])


def test_any_object(client):
    body = {"max_tokens": 400, "logit_bias": {}, "temperature": 1.0}
    for form in ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}):
        texts = [client.chat(**body, **form, seed=seed)[1]["choices"][0] for seed in range(6)]
        done = [choice for choice in texts if choice["finish_reason"] == "stop"]
        assert done
        assert all(isinstance(json.loads(choice["message"]["content"]), dict) for choice in done)
    plain = client.chat(temperature=0)[1]["choices"]
    assert client.chat(temperature=0, response_format={"type": "text"})[1]["choices"] == plain


@pytest.mark.parametrize("drafter", ["off", "lookup"])
def test_other_requests_and_draft_tokens_change_nothing(model, talker, drafter):
    """Each of several requests, most of them in a form, is answered as alone when all of them come at once."""
    serving = Serving(OpenAIConfig(rows=4))
    mine = read_model(OpenAIConfig(name="tiny", rows=4, context=96, speculative=drafter), talker / "model")
    mine.engine.start()
    serving.open(mine)
    client = Client(serving)
    bodies = [
        {**form, "seed": seed, "logprobs": 2}
        for seed, form in enumerate([{}, *forms(), {}])
        if "response_format" not in form
    ]
    bodies = [{"prompt": "copy this", "temperature": 1.2, "max_tokens": 60, **body} for body in bodies]

    async def all_at_once():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(client.app), base_url="http://test") as http:
            return await asyncio.gather(*(http.post("/v1/completions", json=body) for body in bodies))

    together = [answer.json()["choices"] for answer in asyncio.run(all_at_once())]
    alone = [client.complete(**body)[1]["choices"] for body in bodies]
    mine.engine.stop(drain=False)
    serving.close()
    assert together == alone


@pytest.mark.parametrize("stream", [False, True])
def test_the_form_begins_behind_the_reasoning(led, stream):
    client = led('why {"not": "yet"} </think>')
    _, answer = client.chat(guided_choice=["  so\n<response> "], max_tokens=200, stream=stream)
    parts = [p["delta"] for c in answer for p in c["choices"]] if stream else [answer["choices"][0]["message"]]
    assert "".join(part.get("content", "") for part in parts) == "  so\n<response> "
    assert "".join(part.get("reasoning_content", "") for part in parts) == 'why {"not": "yet"}'


class Spelled:
    """Tokens beside those of a real vocabulary: some write the end of the reasoning and more."""

    token_bytes = [
        b"<s>",
        b"</s>",
        b"a",
        b"</",
        b"think>",
        b"think>a",
        b"</think>",
        b"</think>a",
        b">",
        b"</think",
        b" ",
    ]
    special_tokens = {"<s>": 0, "</s>": 1}
    bos_id, eos_id = 0, 1

    def encode(self, text):
        return [2] * len(text)


def test_no_token_writes_the_end_of_the_reasoning_and_more():
    vocabulary = Vocabulary(Spelled(), 12)
    grammar = vocabulary.grammar(grammar_of(regex_term("a+")))

    def allowed(*tokens, stops=(1,)):
        found = GrammarConstraint(vocabulary, grammar, frozenset(stops), thinking=True)
        for token in tokens:
            found.accept(token)
        return set(np.flatnonzero(found.allowed()).tolist())

    free = {*range(12)} - {1, 7}
    assert allowed() == allowed(9) == allowed(3, 2) == free
    assert allowed(3) == free - {5}
    assert allowed(stops=(1, 10)) == free  # a client may stop in the reasoning
    assert allowed(3, 4) == allowed(6) == allowed(9, 8) == {2}
    assert allowed(6, 2) == {1, 2}
    assert allowed(6, 2, stops=()) == {2}  # ignore_eos
    broken = GrammarConstraint(vocabulary, grammar, frozenset(), thinking=False)
    with pytest.raises(ValueError, match="no place"):
        broken.accept(3)


@pytest.mark.parametrize(
    ("body", "param", "part"),
    [
        ({"response_format": schema_format({"properties": {"a": {"type": "objekt"}}})},
         "response_format.json_schema.schema.properties.a", "Invalid type: objekt"),
        ({"guided_json": {"items": {"anyOf": [{"type": "null"}, {"not": {}}]}}}, "guided_json.items.anyOf[1]", "Unimplemented"),
        ({"guided_json": {"$defs": {"a": {"minLength": "x"}}, "$ref": "#/$defs/a"}}, "guided_json.$defs.a", "positive integer"),
        ({"guided_json": {"$ref": "http://localhost/x"}}, "guided_json", "not present"),
        ({"guided_json": "{"}, "guided_json", "must be a JSON schema"),
        ({"structured_outputs": {"regex": "(["}}, "structured_outputs.regex", "unclosed character class"),
        ({"guided_regex": "(?=a)b"}, "guided_regex", "look-ahead"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "one form"),
        ({"guided_choice": []}, "guided_choice", "at least 1"),
        ({"guided_grammar": "root ::= x"}, "guided_grammar", "not supported"),
        ({"structured_outputs": {}}, "structured_outputs", "give one of"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "only with it"),
        ({"guided_json": {"type": "object", "properties": {"a": False}, "required": ["a"]}}, "guided_json", "Unsatisfiable"),
    ],
)  # fmt: skip
def test_what_no_text_can_have_is_refused_with_its_place(client, body, param, part):
    status, answer = client.chat(**body)
    assert status == 400, answer
    assert answer["error"]["param"] == param
    assert part in answer["error"]["message"]
