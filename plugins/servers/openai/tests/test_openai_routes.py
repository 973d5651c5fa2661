"""The routes around a real engine with a tiny model, without a network."""

import json
from dataclasses import replace

import pytest
from erniecore_generation.completions import prompt_ids
from erniecore_generation.respond import generate_text
from erniecore_openai.config import OpenAIConfig
from erniecore_openai.serving import read_model
from erniecore_openai.state import Serving
from openai_client import HELLO, Client, Forced, together

from erniecore.api.data import Message, ToolCall

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def test_a_chat_completion_is_what_the_model_generates(client, model):
    status, answer = client.chat()
    asked = [Message("user", HELLO[0]["content"])]
    [expected] = generate_text(model.engine.model, model.tokenizer, [asked], max_new_tokens=12)
    (choice,) = answer["choices"]
    assert (status, answer["object"], answer["model"]) == (200, "chat.completion", "tiny")
    assert choice["message"] == {"role": "assistant", "content": expected.content}
    assert choice["finish_reason"] == {"stop": "stop", "length": "length"}[expected.finish_reason]
    assert answer["usage"]["prompt_tokens"] == expected.prompt_tokens
    assert answer["usage"]["completion_tokens"] == len(expected.ids)


def test_a_stream_has_the_same_completion_piece_by_piece(client):
    body = {"temperature": 1.3, "seed": 7, "n": 3, "logprobs": True, "top_logprobs": 2}
    _, whole = client.chat(**body)
    status, chunks = client.chat(**body, stream=True, stream_options={"include_usage": True})
    assert status == 200
    usage = chunks.pop()["usage"]
    assert 0 <= usage["prompt_tokens_details"].pop("cached_tokens") < usage["prompt_tokens"]
    assert usage == {**whole["usage"], "prompt_tokens_details": {}}
    for choice in whole["choices"]:
        parts = [p for chunk in chunks for p in chunk["choices"] if p["index"] == choice["index"]]
        assert parts[0]["delta"]["role"] == "assistant"
        assert "".join(p["delta"].get("content", "") for p in parts) == choice["message"]["content"]
        told = [entry for p in parts if p["logprobs"] for entry in p["logprobs"]["content"]]
        assert told == choice["logprobs"]["content"]
        assert [p["finish_reason"] for p in parts if p["finish_reason"]] == [choice["finish_reason"]]
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert len(set(texts)) == 3


def test_prompts_of_one_request_are_answered_as_alone(client):
    prompts = ["copy", "who are you", "copy this text"]
    _, together = client.complete(prompts, logprobs=1)
    alone = [client.complete(prompt, logprobs=1)[1]["choices"][0] for prompt in prompts]
    assert [{**choice, "index": 0} for choice in together["choices"]] == alone


def test_scores_of_prompts_are_as_the_harness_of_evaluations_reads_them(client, model):
    """One entry more than the prompt has tokens, so that ``[context:-1]`` ends with the prompt's last one."""
    body = {"max_tokens": 1, "logprobs": 1, "echo": True, "seed": 1234}
    ids = [model.tokenizer.encode("copy this text"), model.tokenizer.encode("who")]
    _, answer = client.complete(ids, **body)
    for given, choice in zip(ids, answer["choices"], strict=True):
        told = choice["logprobs"]
        assert [len(values) for values in told.values()] == [len(given) + 1] * 4
        assert told["token_logprobs"][0] is told["top_logprobs"][0] is None
        for value, top in zip(told["token_logprobs"][1:], told["top_logprobs"][1:], strict=True):
            assert value <= max(top.values()) <= 0
        assert told["token_logprobs"][-1] == max(told["top_logprobs"][-1].values())  # which was chosen greedily
        for token, offset in zip(told["tokens"][1:-1], told["text_offset"][1:], strict=False):
            assert choice["text"][offset:].startswith(token)
    _, streamed = client.complete(ids, **body, stream=True)
    for choice in answer["choices"]:
        told = [
            p["logprobs"] for e in streamed for p in e["choices"] if p["index"] == choice["index"] and p["logprobs"]
        ]
        assert [v for part in told for v in part["token_logprobs"]] == choice["logprobs"]["token_logprobs"]


def test_a_prompt_can_be_repeated_and_nothing_else(client):
    _, answer = client.complete("copy this", echo=True, max_tokens=0, logprobs=0)
    (choice,) = answer["choices"]
    assert choice["text"] == "copy this"
    assert len(choice["logprobs"]["tokens"]) == answer["usage"]["prompt_tokens"]
    assert answer["usage"]["completion_tokens"] == 0
    assert client.complete("copy this", echo=True, max_tokens=0)[1]["choices"][0]["logprobs"] is None


def test_stop_strings_end_the_text_before_them(client):
    _, answer = client.complete(ignore_eos=True, max_tokens=40)
    text = answer["choices"][0]["text"]
    stop = text[5:8]
    cut = text.partition(stop)[0]
    _, answer = client.complete(ignore_eos=True, max_tokens=40, stop=["never there", stop])
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == (cut, "stop")
    _, chunks = client.complete(ignore_eos=True, max_tokens=40, stop=stop, stream=True)
    assert "".join(p["text"] for c in chunks for p in c["choices"]) == cut


def test_a_stream_begins_with_the_first_token_though_it_is_a_part_of_a_character(model):
    """Clients measure the time to the first token by it."""
    ids = model.tokenizer.encode("\N{SNOWMAN}")
    parts = ids[-3:]
    assert all(model.tokenizer.decode([part]) == "\N{REPLACEMENT CHARACTER}" for part in parts)  # its bytes in UTF-8

    class Engine:
        cancel, stats = staticmethod(model.engine.cancel), staticmethod(model.engine.stats)

        def submit(self, request, listener):
            return model.engine.submit(replace(request, constraint=Forced(parts, model.vocab_size)), listener)

    serving = Serving(OpenAIConfig())
    serving.open(replace(model, engine=Engine()))
    status, chunks = Client(serving).complete(stream=True)
    serving.close()
    texts = [part["text"] for chunk in chunks for part in chunk["choices"]]
    assert (status, texts[0], "".join(texts)) == (200, "", "\N{SNOWMAN}")


def test_tokens_are_steered(client, model):
    token = model.tokenizer.encode("copy")[-1]
    always = {"logit_bias": {str(token): 100}, "logprobs": 0}
    text = client.complete(max_tokens=3, **always)[1]["choices"][0]["logprobs"]["tokens"]
    assert text == [text[0]] * 3
    _, answer = client.complete(max_tokens=9, stop_token_ids=[token], **always)
    assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (1, "stop")
    _, answer = client.complete(max_tokens=9, stop_token_ids=[token], min_tokens=4, **always)
    assert answer["usage"]["completion_tokens"] == 5
    ending = {"logit_bias": {str(model.tokenizer.eos_id): 100}, "max_tokens": 5}
    assert client.complete(**ending)[1]["usage"]["completion_tokens"] == 1
    assert client.complete(**ending, ignore_eos=True)[1]["usage"]["completion_tokens"] == 5


def test_conversations_are_rendered_as_the_template_has_them(scripted):
    client = scripted("x")
    tokenizer = client.serving.model().tokenizer
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "A"}'}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
        *HELLO,
        {"role": "assistant", "content": None, "reasoning": "ask", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ]
    asked = [
        Message("system", "be brief"),
        Message("user", "copy this"),
        Message("assistant", "", "ask", (ToolCall("weather", '{"city": "A"}'),)),
        Message("tool", "sunny"),
    ]
    expected, _ = prompt_ids(tokenizer, tokenizer.chat_template, asked, [TOOL])
    assert client.post("/tokenize", messages=messages, tools=[TOOL])[1]["tokens"] == expected


ANSWER = """ hmm
</think>

Wait.
<tool_call>
{"name": "weather", "arguments": {"city": "A"}}
</tool_call>
<tool_call>
{"name": "weather", "arguments": {"city": "B"}}
</tool_call>
"""


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_and_tool_calls_are_told_apart(scripted, field):
    client = scripted(ANSWER, reasoning_field=field)
    asked = {"max_tokens": 400, "tools": [TOOL], "messages": [{"role": "user", "content": "a"}]}
    status, answer = client.chat(**asked)
    assert status == 200, answer
    (choice,) = answer["choices"]
    calls = choice["message"].pop("tool_calls")
    assert choice["message"] == {"role": "assistant", "content": "Wait.", field: "hmm"}
    assert choice["finish_reason"] == "tool_calls"
    assert [call["function"] for call in calls] == [
        {"name": "weather", "arguments": '{"city": "A"}'}, {"name": "weather", "arguments": '{"city": "B"}'},
    ]  # fmt: skip
    assert len({call["id"] for call in calls}) == 2
    assert calls[0]["id"].startswith("chatcmpl-tool-")
    assert 0 < answer["usage"]["completion_tokens_details"]["reasoning_tokens"] < answer["usage"]["completion_tokens"]
    _, chunks = client.chat(**asked, stream=True)
    deltas = [part["delta"] for chunk in chunks for part in chunk["choices"]]
    assert "".join(delta.get(field, "") for delta in deltas) == "hmm"
    assert "".join(delta.get("content", "") for delta in deltas) == "Wait."
    parts = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert together(parts) == [call["function"] for call in calls]
    assert [call["index"] for call in parts if "id" in call] == [0, 1]
    assert sum(call["index"] == 0 and "id" not in call for call in parts) > 1  # arguments come piece by piece
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_completion_that_fails_is_told_to_the_operator(scripted, monkeypatch, capsys):
    def broken(self):
        raise RuntimeError("out of masks")

    monkeypatch.setattr(Forced, "allowed", broken)
    client = scripted("x")
    status, answer = client.chat()
    assert (status, answer["error"]["type"]) == (500, "server_error")
    streamed = client.send("POST", "/v1/chat/completions", json={"messages": HELLO, "stream": True}).text
    assert json.loads(streamed.strip().rpartition("data: ")[2]) == answer
    assert "out of masks" not in streamed
    assert capsys.readouterr().err.count("a completion failed: RuntimeError: out of masks") == 2


def test_tools_that_are_not_to_be_called_are_not_offered(scripted):
    client = scripted("</think>no")
    _, answer = client.chat(tools=[TOOL], tool_choice="none", max_tokens=9)
    _, without = client.chat(max_tokens=9)
    assert answer["usage"]["prompt_tokens"] == without["usage"]["prompt_tokens"]
    assert answer["choices"][0]["message"]["content"] == "no"


def test_texts_and_tokens(client, model):
    _, told = client.post("/tokenize", prompt="copy this", add_special_tokens=False)
    assert told["tokens"] == model.tokenizer.encode("copy this")
    assert told["max_model_len"] == 2048
    assert client.post("/detokenize", tokens=told["tokens"])[1] == {"prompt": "copy this"}
    assert client.post("/tokenize", prompt="", add_special_tokens=True)[1]["tokens"] == [model.tokenizer.bos_id]
    info = client.send("GET", "/tokenizer_info").json()
    assert info["eos_token"] == "</s>"
    assert client.post("/tokenize", prompt="</s>")[1]["tokens"] == [model.tokenizer.eos_id]
    assert model.tokenizer.eos_id not in client.post("/tokenize", prompt="a </s>")[1]["tokens"]
    assert info["chat_template"] == model.tokenizer.chat_template.source


def test_the_document_has_every_error_and_no_other(client):
    document = client.send("GET", "/openapi.json").json()
    chat = document["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert set(chat) == {"200", "400", "401", "404", "405", "408", "413", "429", "500", "503"}
    assert "text/event-stream" in chat["200"]["content"]
    error = document["components"]["schemas"]["ErrorDetail"]
    assert set(error["required"]) == set(client.chat(max_token=1)[1]["error"])
    assert not [name for name in document["components"]["schemas"] if "ValidationError" in name]


@pytest.mark.parametrize(
    ("body", "param", "part"),
    [
        ({"max_token": 3}, "max_token", "did you mean max_tokens?"),
        ({"functions": []}, "functions", "use tools"),
        ({"temperature": "1"}, "temperature", "valid number"),
        ({"temperature": -1}, "temperature", "greater than or equal to 0"),
        ({"top_p": 2}, "top_p", "less than or equal to 1"),
        ({"n": True}, "n", "valid integer"),
        ({"n": 500}, "n", "at most 128"),
        ({"stream_options": {"include_usage": True}}, None, "only with stream"),
        ({"top_logprobs": 3}, None, "only with logprobs"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, None, "differs from max_tokens"),
        ({"max_tokens": 3000}, None, "do not fit"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages[0]", "robot"),
        ({"messages": [{"role": "user", "content": "x", "name": "Bo"}]}, "messages[0].name", "not supported"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]}, None, "image_url"),
        ({"messages": [*HELLO, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}]},
         "messages", "JSON object"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs", "no switch"),
        ({"logit_bias": {"x": 1}}, None, "token ids"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "outside the vocabulary"),
        ({"stop": ["a"] * 17}, "stop", "at most 16"),
        ({"tool_choice": "must", "tools": [TOOL]}, "tool_choice", "'required'"),
        ({"response_format": {"type": "jsn"}}, "response_format.type", "'json_object'"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(client, body, param, part):
    status, answer = client.chat(**body)
    error = answer["error"]
    assert (status, error["type"]) == (400, "invalid_request_error"), answer
    assert part in error["message"]
    assert param is None or error["param"] == param
    assert set(error) == {"message", "type", "param", "code"}


def test_other_statuses(client, serving):
    assert client.chat(model="other")[1]["error"]["code"] == "model_not_found"
    assert client.send("GET", "/v1/models/other").status_code == 404
    assert client.send("GET", "/v1/models/tiny").json() == client.send("GET", "/v1/models").json()["data"][0]
    for method, path, status in (("GET", "/v2", 404), ("GET", "/v1/completions", 405), ("DELETE", "/health", 405)):
        response = client.send(method, path)
        assert (response.status_code, "error" in response.json()) == (status, True)
    long = client.send("POST", "/v1/completions", json={"prompt": "x" * (1 << 17)})
    assert (long.status_code, long.json()["error"]["code"]) == (413, "body_too_long")
    assert client.send("GET", "/health").json() == {"status": "ready"}
    serving.draining = True
    refused = client.send("POST", "/v1/completions", json={"prompt": "x"})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert client.send("GET", "/health").status_code == 503


def test_before_the_model_is_read_health_says_so():
    client = Client(Serving(OpenAIConfig()))
    assert (client.send("GET", "/health").status_code, client.send("GET", "/health").json()) == (
        503,
        {"status": "loading"},
    )
    assert client.chat()[0] == client.send("GET", "/v1/models").status_code == 503
    assert client.send("GET", "/metrics").status_code == 200


def test_every_route_but_health_asks_for_the_key(serving):
    key = "sk-0123456789abcdef"
    client = Client(serving, key)
    routes = {("GET", "/openapi.json"), ("GET", "/nowhere")}
    paths = client.app.openapi()["paths"]
    routes |= {(method.upper(), path.replace("{name}", "tiny")) for path in paths for method in paths[path]}
    assert ("POST", "/v1/chat/completions") in routes
    for method, path in routes - {("GET", "/health"), ("HEAD", "/health")}:
        for headers in ({}, {"authorization": "Bearer "}, {"authorization": f"Bearer {key}x"}, {"authorization": key}):
            response = client.send(method, path, headers=headers)
            assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer"), (method, path)
    assert client.send("GET", "/health").status_code == 200
    assert client.send("GET", "/v1/models", headers={"authorization": f"bearer {key}"}).status_code == 200


def test_a_full_queue_is_429_and_nothing_of_the_request_stays(talker):
    model = read_model(OpenAIConfig(rows=1, waiting=2), talker / "model")
    model.engine.start()
    serving = Serving(OpenAIConfig(max_choices=1000))
    serving.open(model)
    response = Client(serving).send("POST", "/v1/completions", json={"prompt": ["a"] * 900})
    assert (response.status_code, response.headers["retry-after"]) == (429, "1")
    assert response.json()["error"]["type"] == "rate_limit_error"
    model.engine.stop(drain=True)
    assert model.engine.stats().running + model.engine.stats().waiting == 0
    assert Client(serving).complete()[0] == 503
    serving.close()


def test_a_queue_is_full_of_requests_whatever_they_ask_for(model):
    serving = Serving(OpenAIConfig(waiting_requests=2))
    serving.open(model)  # which has four rows
    client = Client(serving)
    for number in range(6):
        assert client.complete(n=3)[0] == 200
        serving.began(f"request-{number}", ())
    response = client.send("POST", "/v1/chat/completions", json={"messages": HELLO})
    assert (response.status_code, response.headers["retry-after"]) == (429, "1")
    assert response.json()["error"]["code"] == "queue_full"
    serving.ended("request-3")
    assert client.complete(n=3)[0] == 200
    serving.close()


def test_metrics_have_the_names_of_dashboards(client):
    client.complete()
    text = client.send("GET", "/metrics").text
    for name in (
        "num_requests_running", "num_requests_waiting", "time_to_first_token_seconds_bucket",
        "time_per_output_token_seconds_sum", "e2e_request_latency_seconds_count", "request_queue_time_seconds_sum",
        "request_prefill_time_seconds_sum", "request_decode_time_seconds_sum", "request_inference_time_seconds_sum",
        "prompt_tokens_total", "generation_tokens_total", "request_success_total", "hit_token_rate",
    ):  # fmt: skip
        assert f"\nfastdeploy:{name}" in text
    assert "copy" not in text


def test_no_other_origin_may_ask(client):
    response = client.send("POST", "/v1/completions", json={"prompt": "a"}, headers={"origin": "http://evil.example"})
    assert not [name for name in response.headers if name.startswith("access-control")]
    assert client.send("OPTIONS", "/v1/completions", headers={"origin": "http://evil.example"}).status_code == 405
    simple = client.send("POST", "/v1/completions", content='{"prompt": "a"}', headers={"content-type": "text/plain"})
    assert (simple.status_code, "application/json" in simple.json()["error"]["message"]) == (400, True)
