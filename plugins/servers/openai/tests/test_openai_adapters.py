"""Adapters as models of their own: listed, chosen by name, decoded side by side, refused at the start where they do not fit."""

import asyncio
import json
import re
import shutil

import httpx
import pytest
from erniecore_generation.respond import generate_text
from erniecore_openai.adapters import models_of
from erniecore_openai.config import OpenAIConfig
from erniecore_openai.serving import read_model
from erniecore_openai.state import Serving
from openai_client import HELLO, Client
from talker import make_adapter, roomy

from erniecore.api.data import Message
from erniecore.cli.app import main
from erniecore.errors import Exit

BODY = {"messages": HELLO, "max_tokens": 24, "temperature": 1.1, "seed": 5, "logprobs": True, "top_logprobs": 2}


@pytest.fixture(scope="module")
def places(talker, tmp_path_factory):
    """The base, and two adapters on it."""
    home = tmp_path_factory.mktemp("adapters")
    base = roomy(talker, home / "base", 512)
    (base / "erniecore_manifest.json").unlink()  # whose config.json was another one
    return {"base": base, **{name: make_adapter(base, home / name, seed) for name, seed in (("plain", 1), ("loud", 2))}}


@pytest.fixture(scope="module")
def settings(places):
    return OpenAIConfig(name="tiny", rows=6, adapters={name: str(places[name]) for name in ("plain", "loud")})


@pytest.fixture(scope="module")
def model(places, settings):
    found = read_model(settings, places["base"])
    found.engine.start()
    yield found
    found.engine.stop(drain=False)


@pytest.fixture
def client(model, settings, places):
    serving = Serving(settings)
    serving.open(*models_of(model, settings.adapters, places["base"]))
    yield Client(serving)
    serving.close()


def told(answer):
    choice = answer["choices"][0]
    return choice["message"]["content"], choice["logprobs"]["content"]


def test_adapters_are_listed_with_their_base(client):
    found = client.send("GET", "/v1/models").json()["data"]
    assert [(m["id"], m["root"], m["parent"]) for m in found] == [
        ("tiny", "tiny", None), ("plain", "tiny", "tiny"), ("loud", "tiny", "tiny")
    ]  # fmt: skip
    assert client.send("GET", "/v1/models/loud").json() == found[2]


def test_each_answers_as_alone_whatever_is_decoded_beside_it(client, model, places):
    """Same tokens and log-probabilities, bit by bit; and those that the adapter has without a server."""
    names = ("tiny", "plain", "loud")
    alone = {name: told(client.chat(**{**BODY, "model": name})[1]) for name in names}
    assert len({text for text, _ in alone.values()}) == 3

    async def ask_all():
        transport = httpx.ASGITransport(client.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as session:
            asked = [session.post("/v1/chat/completions", json={**BODY, "model": name}) for name in names * 4]
            return [response.json() for response in await asyncio.gather(*asked)]

    answers = asyncio.run(ask_all())
    assert [answer["model"] for answer in answers] == [*names * 4]
    assert [told(answer) for answer in answers] == [alone[name] for name in names * 4]
    assert told(client.chat(**BODY)[1]) == alone["tiny"]
    greedy = client.chat(model="loud", temperature=0, max_tokens=24)[1]["choices"][0]["message"]["content"]
    from erniecore.api.run import load_adapter, open_model

    own = load_adapter(open_model(places["base"]).model, places["loud"], "loud")
    [expected] = generate_text(own, model.tokenizer, [[Message("user", HELLO[0]["content"])]], max_new_tokens=24)
    assert greedy == expected.content


def test_completions_take_the_name_and_metrics_count_by_it(client):
    found = {name: client.complete(model=name)[1]["choices"][0] for name in ("tiny", "plain")}
    assert found["tiny"]["text"] != found["plain"]["text"]
    text = client.send("GET", "/metrics").text
    counted = dict(re.findall(r'^vllm:generation_tokens_total\{model_name="(\w+)"\} (\S+)$', text, re.MULTILINE))
    assert {name: float(value) > 0 for name, value in counted.items()} == {"tiny": True, "plain": True}
    assert 'vllm:lora_requests_info{max_lora="2",running_lora_adapters="",waiting_lora_adapters=""}' in text
    ended = f'finished_reason="{found["plain"]["finish_reason"]}",model_name="plain"'
    assert f"vllm:request_success_total{{{ended}}} 1.0" in text


def test_the_engine_tells_which_adapters_run_and_which_wait(client, model):
    async def ask():
        transport = httpx.ASGITransport(client.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as session:
            body = {"prompt": "a", "max_tokens": 400, "ignore_eos": True}
            first = asyncio.ensure_future(session.post("/v1/completions", json={**body, "n": 6, "model": "loud"}))
            while model.engine.stats().running < 6:
                await asyncio.sleep(0.001)
            second = asyncio.ensure_future(session.post("/v1/completions", json={**body, "model": "plain"}))
            while not model.engine.stats().waiting:
                await asyncio.sleep(0.001)
            stats = model.engine.stats()
            await session.post("/v1/abort", json={"abort_all": True})
            await asyncio.gather(first, second)
            return stats

    stats = asyncio.run(ask())
    assert (stats.running_adapters, stats.waiting_adapters) == (("loud",), ("plain",))


def test_an_unknown_name_gets_the_nearest(client):
    status, refused = client.chat(model="plian")
    error = refused["error"]
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert error["message"] == "no such model; this server has tiny, plain, loud; did you mean plain?"


@pytest.fixture
def refusal(places, capsys):
    def run(*words, code=Exit.USAGE, base="base"):
        argv = ["serve", "--backend", "openai", "--model", str(places.get(base, base)), "port=0", *map(str, words)]
        assert main(argv) == code
        return capsys.readouterr().err

    return run


def test_what_does_not_fit_is_refused_before_anything_is_served(places, refusal, tmp_path):
    plain = places["plain"]
    text = refusal("--adapter", f"a={tmp_path / 'nowhere'}")
    assert "adapters.a" in text
    assert "no such adapter directory" in text
    assert "nowhere" in text
    assert "adapters.a" in refusal(f"adapters.a={places['base']}")
    assert "the base has this name" in refusal("--adapter", f"base={plain}")
    assert "two adapters have this name" in refusal("--adapter", f"a={plain}", "--adapter", f"a={places['loud']}")
    assert "NAME=DIR" in refusal("--adapter", f"a.b={plain}")

    other = tmp_path / "other"
    shutil.copytree(places["base"], other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 77}))
    text = refusal("--adapter", f"a={plain}", base=other)
    assert "ERN-C021" in text
    assert "adapters.a" in text
    assert "trained on another base" in text

    damaged = tmp_path / "damaged"
    shutil.copytree(plain, damaged)
    (damaged / "adapter_model.safetensors").write_bytes(b"\0" * 64)
    text = refusal("--adapter", f"a={damaged}", code=Exit.CHECKPOINT)
    assert "adapters.a" in text
    assert "adapter_model.safetensors" in text
