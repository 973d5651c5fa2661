"""A real engine with a tiny model behind the routes, without a network."""

from dataclasses import replace

import pytest
from erniecore_ernie45.templating import builtin_source
from erniecore_openai.config import OpenAIConfig
from erniecore_openai.serving import read_model
from erniecore_openai.state import Serving
from erniecore_text import JinjaChatTemplate, SentencePieceTokenizer
from openai_client import Client, Forced, Led
from talker import roomy

from erniecore.api.model import Segment


@pytest.fixture(scope="package")
def model(talker, tmp_path_factory):
    """The model that talks, with room for the description of tools."""
    directory = roomy(talker, tmp_path_factory.mktemp("roomy") / "model", 2048)
    found = read_model(OpenAIConfig(name="tiny", rows=4), directory)
    found.engine.start()
    yield found
    found.engine.stop(drain=False)


@pytest.fixture
def serving(model):
    found = Serving(OpenAIConfig(max_body_bytes=1 << 16, body_seconds=5.0))
    found.open(model)
    yield found
    found.close()


@pytest.fixture
def client(serving):
    return Client(serving)


@pytest.fixture
def steered(model):
    """A client of a thinking model; each constraint goes through a function of itself and the token ids of a text."""
    template = JinjaChatTemplate(builtin_source("thinking"))
    tokenizer = SentencePieceTokenizer(model.tokenizer.model, model.tokenizer.files, template)
    opened = []

    def start(make, text, **settings):
        ids = [i for part in tokenizer.encode_segments([Segment(text, True)]) for i in part]

        class Engine:
            def submit(self, request, listener):
                return model.engine.submit(replace(request, constraint=make(request.constraint, ids)), listener)

            cancel, stats = staticmethod(model.engine.cancel), staticmethod(model.engine.stats)

        serving = Serving(OpenAIConfig(**settings))
        serving.open(replace(model, tokenizer=tokenizer, engine=Engine()))
        opened.append(serving)
        return Client(serving)

    yield start
    for serving in opened:
        serving.close()


@pytest.fixture
def scripted(steered, model):
    """A client of a thinking model whose completion is a given text."""
    return lambda text, **settings: steered(lambda _, ids: Forced(ids, model.vocab_size), text, **settings)


@pytest.fixture
def led(steered):
    """The same, whose completion begins with a given text and goes on as the constraint of the request has it."""
    return lambda text: steered(Led, text)
