"""OpenAI's own Python client: whole and streamed, in threads and in a loop, errors as it raises them."""

import asyncio
import json

import openai
import pytest

HELLO = [{"role": "user", "content": "copy this"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a town.",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    },
}


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.url, api_key=server.key, max_retries=0) as found:
        yield found


def asked(**more):
    return {"model": "tiny", "messages": HELLO, "max_tokens": 12, "temperature": 0, **more}


def test_models_are_listed(client):
    [model] = client.models.list()
    assert (model.id, client.models.retrieve("tiny").id) == ("tiny", "tiny")


def test_a_stream_says_what_the_whole_answer_says(client):
    whole = client.chat.completions.create(**asked(seed=5, temperature=1.2, n=2))
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    texts, ends, usage = ["", ""], ["", ""], None
    with client.chat.completions.create(
        **asked(seed=5, temperature=1.2, n=2), stream=True, stream_options={"include_usage": True}
    ) as stream:
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                ends[choice.index] = choice.finish_reason or ends[choice.index]
    assert texts == [choice.message.content for choice in whole.choices]
    assert texts[0] != texts[1]
    assert ends == [choice.finish_reason for choice in whole.choices]
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_the_helper_for_streams_puts_the_answer_together(client):
    stop = client.chat.completions.create(**asked()).choices[0].message.content[3:5]  # it refuses what length has ended
    whole = client.chat.completions.create(**asked(stop=[stop]))
    assert whole.choices[0].finish_reason == "stop"
    with client.chat.completions.stream(**asked(stop=[stop])) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert {"chunk", "content.delta", "content.done"} <= kinds


def test_log_probabilities(client):
    choice = client.chat.completions.create(**asked(logprobs=True, top_logprobs=3)).choices[0]
    entries = choice.logprobs.content
    assert "".join(entry.token for entry in entries).startswith(choice.message.content)
    for entry in entries:  # temperature 0: each is the most likely one
        assert entry.logprob == entry.top_logprobs[0].logprob
        assert len(entry.top_logprobs) == 3
    text = client.completions.create(
        model="tiny", prompt="copy this", echo=True, logprobs=2, max_tokens=4, temperature=0
    )
    told = text.choices[0].logprobs
    assert told.token_logprobs[0] is None
    assert "".join(told.tokens).strip() == text.choices[0].text.strip()


def test_many_ask_at_once_and_each_gets_its_own(server):
    prompts = [f"copy {n}" for n in range(8)]

    async def ask(client, prompt, stream):
        body = asked(messages=[{"role": "user", "content": prompt}])
        if not stream:
            return (await client.chat.completions.create(**body)).choices[0].message.content
        chunks = await client.chat.completions.create(**body, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    async def ask_all():
        async with openai.AsyncOpenAI(base_url=server.url, api_key=server.key) as client:
            together = await asyncio.gather(*(ask(client, p, n % 2) for n, p in enumerate(prompts)))
            return together, [await ask(client, prompt, False) for prompt in prompts]

    together, alone = asyncio.run(ask_all())
    assert together == alone


def test_a_conversation_with_tools_goes_on(thinker):
    """The result of a tool is given back, with the call, as the client's own types have it."""
    call = {"id": "call-1", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Rome"}'}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call-1", "content": "sunny"},
    ]
    with openai.OpenAI(base_url=thinker.url, api_key="none", max_retries=0) as client:
        body = asked(model="thinker", messages=messages, tools=[TOOL])
        answer = client.chat.completions.create(**body, tool_choice="auto")
        without = client.chat.completions.create(**body, tool_choice="none")
    assert answer.usage.prompt_tokens > without.usage.prompt_tokens  # the tools are told to the model
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")


@pytest.mark.parametrize(
    ("change", "kind", "status"),
    [
        ({"max_token": 3}, openai.BadRequestError, 400),
        ({"temperature": -1}, openai.BadRequestError, 400),
        ({"messages": []}, openai.BadRequestError, 400),
        ({"messages": [{"role": "user", "content": "word " * 3000}]}, openai.BadRequestError, 400),
        ({"model": "gpt-4"}, openai.NotFoundError, 404),
        ({"n": 100}, openai.RateLimitError, 429),
    ],
)
def test_errors_are_those_that_the_client_knows(client, change, kind, status):
    with pytest.raises(kind) as found:
        client.chat.completions.create(**{**asked(), "extra_body": change})
    assert found.value.status_code == status
    assert set(found.value.body) == {"message", "type", "param", "code"}
    if status == 429:
        assert int(found.value.response.headers["retry-after"]) >= 1


def test_a_wrong_key_is_told(server):
    with (
        openai.OpenAI(base_url=server.url, api_key="sk-wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as found,
    ):
        client.models.list()
    assert found.value.code == "invalid_api_key"


def test_raw_answers_and_a_stream_that_is_left(client):
    raw = client.chat.completions.with_raw_response.create(**asked())
    assert raw.headers["content-type"] == "application/json"
    assert json.loads(raw.text)["object"] == "chat.completion"
    stream = client.chat.completions.create(**asked(max_tokens=1500), stream=True)
    next(iter(stream))
    stream.close()
    assert client.chat.completions.create(**asked()).choices[0].message.content


def test_reasoning_is_apart(thinker):
    with openai.OpenAI(base_url=thinker.url, api_key="none") as client:
        body = {"model": "thinker", "messages": HELLO, "max_tokens": 12, "temperature": 0}
        message = client.chat.completions.create(**body).choices[0].message
        assert (message.reasoning_content, message.content) != ("", None)
        streamed = client.chat.completions.create(**body, stream=True)
        parts = [chunk.choices[0].delta for chunk in streamed]
    assert "".join(getattr(part, "reasoning_content", None) or "" for part in parts) == message.reasoning_content
