"""Tool calls that are asked for: they are made, with arguments of the schema, streamed as they are written."""

import json

import jsonschema
import pytest
from openai_client import together

ARGUMENTS = {
    "type": "object",
    "$defs": {"unit": {"enum": ["C", "F"]}},
    "properties": {"city": {"type": "string", "maxLength": 4}, "unit": {"$ref": "#/$defs/unit"}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": ARGUMENTS}}
CLOCK = {
    "type": "function",
    "function": {"name": 'clock "of"', "parameters": {"properties": {}, "additionalProperties": False}},
}
TOOLS = [WEATHER, CLOCK]


@pytest.fixture
def client(led):
    """Of a model whose template takes tools; its reasoning is short."""
    return led("hm</think>")


def named(tool):
    return {"type": "function", "function": {"name": tool["function"]["name"]}}


@pytest.mark.parametrize("choice", ["required", named(WEATHER), named(CLOCK)], ids=["required", "weather", "clock"])
@pytest.mark.parametrize("parallel", [True, False])
def test_calls_that_are_forced_are_made_and_streamed(client, choice, parallel):
    asked = {
        "tools": TOOLS,
        "tool_choice": choice,
        "parallel_tool_calls": parallel,
        "temperature": 1.0,
        "max_tokens": 300,
        "n": 3,
    }
    status, answer = client.chat(**asked, seed=5)
    assert status == 200, answer
    _, chunks = client.chat(**asked, seed=5, stream=True)
    for choice_of in answer["choices"]:
        message = choice_of["message"]
        assert (choice_of["finish_reason"], message["content"]) == ("tool_calls", None)
        calls = [call["function"] for call in message["tool_calls"]]
        assert len(calls) == 1 or (parallel and choice == "required")
        for call in calls:
            schema = ARGUMENTS if call["name"] == "weather" else CLOCK["function"]["parameters"]
            jsonschema.validate(json.loads(call["arguments"]), schema)
            assert isinstance(choice, str) or call["name"] == choice["function"]["name"]
        deltas = [p["delta"] for c in chunks for p in c["choices"] if p["index"] == choice_of["index"]]
        assert together([part for delta in deltas for part in delta.get("tool_calls", ())]) == calls


def test_several_calls_when_they_are_allowed(client):
    asked = {"tools": TOOLS, "tool_choice": "required", "temperature": 1.0, "max_tokens": 400, "ignore_eos": True}
    counts = []
    for seed in range(3):
        _, answer = client.chat(**asked, seed=seed)
        counts.append(len(answer["choices"][0]["message"]["tool_calls"]))
    assert max(counts) > 1


def test_a_call_that_is_cut_off_says_so(client):
    asked = {"tools": [WEATHER], "tool_choice": "required", "temperature": 0, "max_tokens": 45}
    (choice,) = client.chat(**asked)[1]["choices"]
    assert choice["finish_reason"] == "length"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["arguments"].startswith('{"')
    assert not call["function"]["arguments"].endswith("}")


CALL = '\n<tool_call>\n{"name": "weather", "arguments": '


@pytest.mark.parametrize("parallel", [True, False])
def test_strict_tools_are_called_by_their_schema_where_the_model_chooses_to(led, parallel):
    """Behind a begun call the rest is the schema's; text before it, and between calls, is free."""
    client = led("why</think>\n\nLet me see." + CALL)
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    asked = {
        "tools": [strict, CLOCK],
        "parallel_tool_calls": parallel,
        "temperature": 1,
        "seed": 1,
        "max_tokens": 260,
        "ignore_eos": True,
    }
    (choice,) = client.chat(**asked)[1]["choices"]
    message = choice["message"]
    assert message["reasoning_content"] == "why"
    assert message["content"].startswith("Let me see.")
    arguments = json.loads(message["tool_calls"][0]["function"]["arguments"])
    jsonschema.validate(arguments, ARGUMENTS)
    assert choice["finish_reason"] == ("length" if parallel else "tool_calls")
    assert parallel or message["content"] == "Let me see."


def test_an_answer_is_a_call_or_has_the_form(led):
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    tools = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    asked = {"tools": tools, "response_format": form, "temperature": 1, "seed": 1, "max_tokens": 300}
    (choice,) = led("hm</think>{").chat(**asked)[1]["choices"]
    assert json.loads(choice["message"]["content"])["ok"] in (True, False)
    assert "tool_calls" not in choice["message"]
    (choice,) = led("hm</think>" + CALL.replace("weather", 'clock \\"of\\"')).chat(**asked, parallel_tool_calls=False)[
        1
    ]["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None


@pytest.mark.parametrize(
    ("body", "param", "part"),
    [
        ({"tool_choice": "required"}, None, "there are no tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "wether"}}}, None, "has this name"),
        ({"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"}, "guided_regex", "one form"),
        ({"tools": [CLOCK, {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"not": {}}}}}}],
          "tool_choice": "required"}, "tools[1].function.parameters.properties.a", "Unimplemented"),
    ],
)  # fmt: skip
def test_calls_that_cannot_be_are_refused(client, body, param, part):
    status, answer = client.chat(**body)
    assert (status, answer["error"]["param"]) == (400, param), answer
    assert part in answer["error"]["message"]
