"""Serving engines for tests: callers that collect the events of a request, and fixtures that start and stop engines."""

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from ernie_third_party_kernels import tensors
from ernie_third_party_kernels.kernel_set import native
from erniecore_conformance.toys.paddle_lm import toy_model
from erniecore_conformance.toys.tokenizer import ToyTokenizer
from erniecore_generation.engine.engine import Engine
from erniecore_generation.engine.requests import Failed, Finished, GenerationRequest, PromptScored, Tokens
from erniecore_generation.sampling import Sampling
from erniecore_ops import kernels

from erniecore.engine.models.bundles import load_bundle

FIXTURES = Path(__file__).parents[2] / "tests" / "fixtures" / "models"
GREEDY = Sampling()


class Caller:
    """Collects the events of one request."""

    def __init__(self):
        self.events, self.over = [], threading.Event()

    def __call__(self, event):
        self.events.append(event)
        if isinstance(event, Finished | Failed):
            self.over.set()

    @property
    def end(self):
        self.over.wait()
        return self.events[-1]

    @property
    def ids(self):
        self.over.wait()
        return [token for event in self.events if isinstance(event, Tokens) for token in event.ids]

    @property
    def outcome(self):
        """Everything that a client could see but times: ids, log-probabilities as bits, how it ended."""
        self.over.wait()
        new = [event for event in self.events if isinstance(event, Tokens)]
        told = [entry for event in new for entry in event.logprobs or ()]
        prompt = [event.logprobs for event in self.events if isinstance(event, PromptScored)]
        return self.ids, told, prompt, getattr(self.end, "reason", repr(self.end))


def engine_of(model, **options):
    return Engine(SimpleNamespace(model=model), ToyTokenizer(), **{"chunk": 16, "block": 4, **options})


@pytest.fixture
def running():
    """Starts engines, and stops them after the test."""
    engines = []

    def start(model, **options):
        engines.append(engine_of(model, **options))
        engines[-1].start()
        return engines[-1]

    yield start
    for engine in engines:
        engine.stop(drain=False)


def ask(engine, ids, sampling=GREEDY, new=8, **options):
    caller = Caller()
    caller.ticket = engine.submit(GenerationRequest(tuple(ids), sampling, new, **options), caller)
    return caller


@pytest.fixture(scope="module")
def toy():
    return toy_model(3)


@pytest.fixture(scope="module")
def fixtures():
    names = {"dense": False, "moe_mtp": True}
    return {name: load_bundle(FIXTURES / name, tokenizer=False, mtp=mtp).bundle.model for name, mtp in names.items()}


@pytest.fixture
def kernel(monkeypatch):
    """Whole passes by the kernel."""
    if native.fault():
        pytest.skip("the library was not built")
    monkeypatch.setattr(tensors, "FEWEST_ELEMENTS", 0)
    monkeypatch.setitem(kernels._in_use, "decoder_step", native.load("decoder_step", lambda: 1, "")["decoder_step"])
