"""Answers in a form, calls of tools, log-probabilities: what openai, litellm and LangChain make of them, whole or streamed."""

import asyncio
import re

import litellm
import openai
import pytest
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict, Field

HELLO = [{"role": "user", "content": "copy this"}]
WORD = "[a-f]{3,9}-[0-9]{2}"


class Order(BaseModel):
    """An order, as a form of answers and as a tool."""

    model_config = ConfigDict(extra="forbid")

    fruit: str = Field(pattern="^(apple|pear)$")
    count: int = Field(ge=1, le=99)


SCHEMA = Order.model_json_schema()
FORM = {"type": "json_schema", "json_schema": {"name": "order", "schema": SCHEMA, "strict": True}}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA, "strict": True}}
    for name in ("order", "cancel")
]
CANCEL = {"type": "function", "function": {"name": "cancel"}}


@pytest.fixture(params=["openai", "openai async", "litellm"])
def client(request):
    """By one of the clients: of a server a function that asks it, for a choice or, with ``stream``, one put together."""
    return {"openai": by_openai, "openai async": by_openai_async, "litellm": by_litellm}[request.param]


@pytest.fixture
def ask(client, server):
    return client(server)


@pytest.fixture
def caller(thinker):
    """Fields of requests for calls of tools: the reasoning before them is empty."""
    with openai.OpenAI(base_url=thinker.url, api_key="none") as client:
        root = thinker.url.removesuffix("/v1")
        [end] = client.post(f"{root}/tokenize", body={"prompt": "</think>"}, cast_to=object)["tokens"]
    return {"model": "thinker", "tools": TOOLS, "parallel_tool_calls": False, "logit_bias": {str(end): 100}}


def asked(**more):
    return {"model": "tiny", "messages": HELLO, "max_tokens": 90, "temperature": 1.0, "seed": 3, **more}


def by_openai(server):
    def ask(**more):
        with openai.OpenAI(base_url=server.url, api_key=server.key or "none", max_retries=0) as client:
            answer = client.chat.completions.create(**asked(**more))
            return together(answer) if more.get("stream") else answer.choices[0]

    return ask


def by_openai_async(server):
    async def ask(**more):
        async with openai.AsyncOpenAI(base_url=server.url, api_key=server.key or "none", max_retries=0) as client:
            answer = await client.chat.completions.create(**asked(**more))
            return together([chunk async for chunk in answer]) if more.get("stream") else answer.choices[0]

    return lambda **more: asyncio.run(ask(**more))


def by_litellm(server):
    def ask(**more):
        answer = litellm.completion(
            **{**asked(**more), "model": f"openai/{server.name}"},
            api_base=server.url,
            api_key=server.key or "none",
            max_retries=0,
            num_retries=0,
        )
        return together(answer) if more.get("stream") else answer.choices[0]

    return ask


class Together:
    """The choice of a stream: content, log-probabilities, calls as (name, arguments, parts), and why it ended."""

    def __init__(self):
        self.content, self.logprobs, self.calls, self.finish_reason = "", [], {}, None


def together(chunks):
    found = Together()
    for chunk in chunks:
        for choice in chunk.choices:
            found.content += choice.delta.content or ""
            found.finish_reason = choice.finish_reason or found.finish_reason
            if getattr(choice, "logprobs", None):
                found.logprobs += choice.logprobs.content
            for call in choice.delta.tool_calls or ():
                begun = found.calls.setdefault(call.index, ["", "", 0])
                begun[0] += call.function.name or ""
                begun[1] += call.function.arguments or ""
                begun[2] += bool(call.function.arguments)
    return found


def test_an_answer_has_the_form_of_a_schema(ask):
    whole, streamed = ask(response_format=FORM), ask(response_format=FORM, stream=True)
    Order.model_validate_json(whole.message.content)
    assert (whole.finish_reason, streamed.finish_reason) == ("stop", "stop")
    assert streamed.content == whole.message.content


def test_an_answer_matches_a_regular_expression(ask):
    more = {"extra_body": {"structured_outputs": {"regex": WORD}}}
    whole, streamed = ask(**more), ask(**more, stream=True)
    assert re.fullmatch(WORD, whole.message.content)
    assert streamed.content == whole.message.content


@pytest.mark.parametrize(
    ("choice", "names"), [("required", {"order", "cancel"}), (CANCEL, {"cancel"})], ids=["any", "named"]
)
def test_tools_are_called_and_their_arguments_streamed(client, thinker, caller, choice, names):
    ask, more = client(thinker), {**caller, "tool_choice": choice}
    [call] = ask(**more).message.tool_calls
    streamed = ask(**more, stream=True)
    assert call.function.name in names
    Order.model_validate_json(call.function.arguments)
    [(name, arguments, parts)] = streamed.calls.values()
    assert (name, arguments) == (call.function.name, call.function.arguments)
    assert parts > 1  # piece by piece
    assert streamed.finish_reason == "tool_calls"
    assert ask(**{**more, "tool_choice": "none"}, max_tokens=5).message.tool_calls is None


def test_log_probabilities_are_the_same_in_a_stream(ask):
    more = {"logprobs": True, "top_logprobs": 2, "max_tokens": 8}
    more["extra_body"] = {"structured_outputs": {"regex": "[a-f]{80}"}}  # litellm drops chunks without text
    whole, streamed = ask(**more), ask(**more, stream=True)
    entries = whole.logprobs.content
    assert [(e.token, e.logprob) for e in streamed.logprobs] == [(e.token, e.logprob) for e in entries]
    assert len(entries) == 8
    assert all(len(e.top_logprobs) == 2 and e.logprob <= 0 for e in entries)


def test_parsed_answers_and_calls_of_openais_helpers(server, thinker, caller):
    """``parse`` makes the form and the tool of a class, and an object of what comes back."""
    with openai.OpenAI(base_url=thinker.url, api_key="none", max_retries=0) as client:
        body = asked(
            **{**caller, "tools": [openai.pydantic_function_tool(Order, name="order")]}, tool_choice="required"
        )
        [call] = client.chat.completions.parse(**body).choices[0].message.tool_calls
        assert call.function.parsed_arguments == Order.model_validate_json(call.function.arguments)
    with openai.OpenAI(base_url=server.url, api_key=server.key, max_retries=0) as client:
        answer = client.chat.completions.parse(**asked(response_format=Order)).choices[0].message
        assert answer.parsed == Order.model_validate_json(answer.content)
        wrong = {"type": "json_schema", "json_schema": {"name": "order", "schema": {"type": "txt"}}}
        with pytest.raises(openai.BadRequestError, match=r"response_format\.json_schema\.schema"):
            client.chat.completions.create(**asked(response_format=wrong))


def langchain(server, **more):
    key = server.key or "none"
    options = {"temperature": 1.0, "seed": 3, "max_completion_tokens": 90, "max_retries": 0}
    return ChatOpenAI(model=server.name, base_url=server.url, api_key=key, **options, **more)


def test_langchain_gets_objects_and_log_probabilities(server):
    chat = langchain(server)
    assert isinstance(chat.with_structured_output(Order, method="json_schema").invoke("copy this"), Order)
    answer = chat.bind(extra_body={"structured_outputs": {"regex": WORD}}, logprobs=True).invoke("copy this")
    assert re.fullmatch(WORD, answer.text)
    entries = answer.response_metadata["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries).startswith(answer.text)


def test_langchain_gets_calls(thinker, caller):
    chat = langchain(thinker, logit_bias=caller["logit_bias"])
    assert isinstance(chat.with_structured_output(Order, method="function_calling").invoke("copy this"), Order)
    bound = chat.bind_tools(TOOLS, tool_choice="cancel", parallel_tool_calls=False)
    whole, chunks = bound.invoke("copy this"), list(bound.stream("copy this"))
    streamed = chunks[0]
    for chunk in chunks[1:]:
        streamed += chunk
    [call], [put_together] = whole.tool_calls, streamed.tool_calls
    assert (call["name"], call["args"]) == (put_together["name"], put_together["args"])
    assert call["name"] == "cancel"
    Order.model_validate(call["args"])
    assert sum(bool(chunk.tool_call_chunks) for chunk in chunks) > 2
