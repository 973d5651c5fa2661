"""OpenAI's own Python client shows images to a model, and asks for adapters beside their base by name."""

import base64
import threading

import openai
import pytest

ASKED = {"max_tokens": 9, "temperature": 0, "logprobs": True}


@pytest.fixture
def client(seer):
    with openai.OpenAI(base_url=seer.url, api_key="none", max_retries=0) as found:
        yield found


def shown(seer, *names):
    urls = [base64.b64encode((seer.directory.parent / name).read_bytes()).decode() for name in names]
    parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{url}"}} for url in urls]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]}]


def tokens(answer):
    return [(entry.token, entry.logprob) for entry in answer.choices[0].logprobs.content]


def test_images_are_seen_alone_and_side_by_side(client, seer):
    prompts = [shown(seer, *names) for names in (["a.png"], ["b.png"], ["c.png", "a.png"], [])]
    alone = [client.chat.completions.create(model="seer", messages=prompt, **ASKED) for prompt in prompts]
    assert len({str(tokens(answer)) for answer in alone}) == 4
    assert alone[0].usage.prompt_tokens > alone[3].usage.prompt_tokens
    together = {}

    def ask(index):
        answer = client.chat.completions.create(model="seer", messages=prompts[index % 4], **ASKED)
        together[index] = tokens(answer)

    threads = [threading.Thread(target=ask, args=[index]) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == {index: tokens(alone[index % 4]) for index in range(8)}


def test_an_image_that_is_not_read_is_a_bad_request(client):
    part = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    with pytest.raises(openai.BadRequestError, match="not fetched") as refused:
        client.chat.completions.create(model="seer", messages=[{"role": "user", "content": [part]}])
    assert (refused.value.param, refused.value.code) == ("messages", "invalid_media")


def test_models_without_eyes_say_so(server, seer):
    refused = pytest.raises(openai.BadRequestError, match="this model reads text")
    with openai.OpenAI(base_url=server.url, api_key=server.key, max_retries=0) as blind, refused:
        blind.chat.completions.create(model="tiny", messages=shown(seer, "a.png"))


def test_adapters_are_models(adapters):
    messages = [{"role": "user", "content": "copy this"}]
    with openai.OpenAI(base_url=adapters.url, api_key="none", max_retries=0) as client:
        listed = {model.id: model.parent for model in client.models.list()}
        assert listed == {"tiny": None, "plain": "tiny", "loud": "tiny"}
        answers = [client.chat.completions.create(model=name, messages=messages, **ASKED) for name in listed]
        assert [answer.model for answer in answers] == list(listed)
        assert len({str(tokens(answer)) for answer in answers}) == 3
        with pytest.raises(openai.NotFoundError, match="did you mean plain"):
            client.chat.completions.create(model="plian", messages=messages)
