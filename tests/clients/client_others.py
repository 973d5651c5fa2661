"""litellm, LangChain and OpenAI's client for node: what each makes of the same answers."""

import json
import os
import subprocess
from pathlib import Path

import litellm
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI

HELLO = [{"role": "user", "content": "copy this"}]
litellm.suppress_debug_info = True


def with_litellm(server, **more):
    return litellm.completion(
        model=f"openai/{server.name}", api_base=server.url, api_key=server.key or "none", messages=HELLO,
        max_tokens=12, temperature=0, num_retries=0, max_retries=0, **more,
    )  # fmt: skip


def test_litellm(server):
    whole = with_litellm(server).choices[0]
    chunks = list(with_litellm(server, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.message.content
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason
    with pytest.raises(litellm.BadRequestError, match="top_logprobs: only with logprobs"):
        with_litellm(server, top_logprobs=2)


def test_litellm_keeps_the_reasoning(thinker):
    message = with_litellm(thinker).choices[0].message
    assert message.reasoning_content
    deltas = [chunk.choices[0].delta for chunk in with_litellm(thinker, stream=True)]
    assert "".join(getattr(d, "reasoning_content", None) or "" for d in deltas) == message.reasoning_content


def test_langchain(server):
    chat = ChatOpenAI(
        model="tiny", base_url=server.url, api_key=server.key, temperature=0, max_completion_tokens=12, max_retries=0
    )
    messages = [SystemMessage("be short"), HumanMessage("copy this"), AIMessage("this"), HumanMessage("again")]
    whole = chat.invoke(messages)
    assert whole.usage_metadata["output_tokens"] == whole.response_metadata["token_usage"]["completion_tokens"]
    assert "".join(chunk.text for chunk in chat.stream(messages)) == whole.text
    assert [answer.text for answer in chat.batch([messages, messages])] == [whole.text] * 2
    assert chat.bind(logprobs=True, top_logprobs=2).invoke(messages).response_metadata["logprobs"]["content"]


def test_node(server, thinker):
    """One process asks for everything; the program says where the client is installed."""
    words = ["node", str(Path(__file__).with_name("openai.mjs")), server.url, server.key, thinker.url]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["models"] == ["tiny"]
    assert found["streamed"] == found["whole"]
    assert found["whole"] == with_litellm(server).choices[0].message.content
    assert found["usage"] > 0
    assert found["logprobs"] == 12
    assert found["reasoning"] == with_litellm(thinker).choices[0].message.reasoning_content
    assert found["errors"] == [
        ["BadRequestError", 400, "unsupported_parameter"],
        ["NotFoundError", 404, "model_not_found"],
        ["AuthenticationError", 401, "invalid_api_key"],
    ]
