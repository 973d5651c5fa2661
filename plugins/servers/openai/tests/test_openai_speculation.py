"""Forms, tool calls and stop strings together with draft tokens: the same tokens and log-probabilities, bit by bit."""

import json
import shutil

import pytest
from engines import FIXTURES
from erniecore_openai.config import OpenAIConfig
from erniecore_openai.serving import read_model
from erniecore_openai.state import Serving
from openai_client import Client
from talker import make_talker, roomy

ROW = {
    "type": "object",
    "properties": {"name": {"enum": ["apple", "apricot"]}, "n": {"type": "integer", "maximum": 99}},
}
ROW |= {"required": ["name", "n"], "additionalProperties": False}
ROWS = {"type": "array", "items": ROW, "minItems": 4, "maxItems": 4}
TOOL = {"type": "function", "function": {"name": "weather", "strict": True, "parameters": ROW}}
FORM = {"type": "json_schema", "json_schema": {"name": "rows", "schema": ROWS}}
#: each is asked greedily and sampled with a seed
CASES = {
    "form": {"response_format": FORM},
    "form and stop string": {"response_format": FORM, "stop": ["apple", "apricot"]},
    "regex": {"guided_regex": "(copy it: [a-c]{3}; ){5}end"},
    "forced call": {"tools": [TOOL], "tool_choice": "required"},
    "text and stop string": {"stop": ["e", " co"], "ignore_eos": True},
}
HOW = [{"temperature": 0}, {"temperature": 1.5, "seed": 3}, {"temperature": 1, "seed": 8, "repetition_penalty": 1.2}]


@pytest.fixture(scope="module", params=["lookup", "mtp"])
def pair(request, tmp_path_factory):
    """Clients of a model without and with draft tokens; its template has a place for tools."""
    home = make_talker(tmp_path_factory.mktemp(request.param), 2048, "thinking")
    directory = home / "model"
    if request.param == "mtp":
        shutil.copytree(FIXTURES / "moe_mtp", home / "moe" / "model")
        shutil.copytree(home / "tokenizer", home / "moe" / "model", dirs_exist_ok=True)
        directory = roomy(home / "moe", home / "roomy", 2048)
    models = [read_model(OpenAIConfig(name="tiny", speculative=how), directory) for how in ("off", request.param)]
    opened = []
    for model in models:
        model.engine.start()
        opened.append(Serving(OpenAIConfig()))
        opened[-1].open(model)
    yield [Client(serving) for serving in opened]
    for serving, model in zip(opened, models, strict=True):
        serving.close()
        model.engine.stop(drain=False)


def test_draft_tokens_change_no_bit_of_what_has_a_form(pair):
    plain, drafted = pair
    closed = plain.serving.model().tokenizer.special_tokens["</think>"]
    for name, body in CASES.items():
        for how in HOW:
            asked = {"max_tokens": 200, "logprobs": True, "top_logprobs": 3, **body, **how}
            if "ignore_eos" not in body:  # reasoning ends at once, and what has a form begins
                asked["logit_bias"] = {str(closed): 100}
            (status, expected), (_, found) = (client.chat(**asked) for client in pair)
            assert status == 200, expected
            assert [without_ids(c) for c in found["choices"]] == [without_ids(c) for c in expected["choices"]], (
                name,
                how,
            )
            content = found["choices"][0]["message"]["content"]
            if name == "form" and found["choices"][0]["finish_reason"] == "stop":
                assert [row["name"][:2] for row in json.loads(content)] == ["ap"] * 4
            if "stop string" in name:
                assert not any(stop in (content or "") for stop in body["stop"])
    stats = drafted.serving.stats()
    assert stats.accepted_tokens > 0
    assert stats.invariant
    assert plain.serving.stats().draft_tokens == 0


def without_ids(choice):
    """A choice without the ids of its calls, which are random."""
    calls = [call["function"] for call in choice["message"].get("tool_calls", ())]
    return {**choice, "message": {**choice["message"], "tool_calls": calls}}
