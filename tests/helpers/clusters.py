"""A router with real processes for tests of the server ``disaggregated``, and requests whose outcomes one process gives too."""

import json
import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
from engines import Caller
from erniecore_disaggregated.plugin import DisaggregatedConfig
from erniecore_disaggregated.router import Router
from erniecore_generation.engine.requests import GenerationRequest
from erniecore_generation.sampling import Sampling
from erniecore_openai.plugin import OpenAIConfig
from erniecore_openai.serving import read_model

#: seconds between two looks
PAUSE = 0.005
PENALIZED = Sampling(do_sample=True, top_p=0.9, repetition_penalty=1.3, frequency_penalty=0.2, seed=4)
SAMPLINGS = (Sampling(), Sampling(do_sample=True, temperature=1.5, seed=3), PENALIZED)


def requests(count, seed=0, new=24, longest=150):
    """Requests of all sorts, half of them with a common beginning."""
    numbers = np.random.default_rng(seed)
    common = numbers.integers(4, 300, 96).tolist()
    found = []
    for stream in range(count):
        begun = common if stream % 2 else []
        ids = begun + numbers.integers(4, 300, int(numbers.integers(1, longest))).tolist()
        options = {"logprobs": stream % 3, "prompt_logprobs": 1 if stream % 5 == 2 else None, "stream": stream}
        options["stop_ids"] = frozenset(numbers.integers(4, 300, 4).tolist())
        found.append(GenerationRequest(tuple(ids), SAMPLINGS[stream % 3], int(numbers.integers(1, new)), **options))
    return found


@pytest.fixture(scope="module")
def directory(talker, tmp_path_factory):
    """The model that talks, with room for long prompts."""
    found = tmp_path_factory.mktemp("roomy") / "model"
    shutil.copytree(talker / "model", found)
    architecture = json.loads((found / "config.json").read_text())
    (found / "config.json").write_text(json.dumps({**architecture, "max_position_embeddings": 4096}))
    return found


@pytest.fixture(scope="module")
def reference(directory):
    """Outcomes of requests in one process, without a prefix cache."""
    model = read_model(OpenAIConfig(rows=8, prefix_bytes=0), directory)
    model.engine.start()
    yield lambda wanted: [caller.outcome for caller in [ask(model.engine, request) for request in wanted]]
    model.engine.stop(drain=False)


def ask(engine, request):
    caller = Caller()
    caller.ticket = engine.submit(request, caller)
    return caller


@pytest.fixture(scope="module")
def router(directory):
    """One process for prompts and two for completions."""
    settings = DisaggregatedConfig(
        prefill=1, decode=2, rows=4, threads=1, handoff_seconds=2, health_seconds=4, restarts=50, handoff_bytes=8 << 20
    )
    found = Router(settings, directory)
    found.start()
    yield found
    found.stop(drain=False)


def long(count, seed, new=300):
    """Requests whose completions take a while."""
    return [replace(r, max_new_tokens=new, stop_ids=frozenset(), logprobs=0) for r in requests(count, seed)]


def when(router, condition):
    """Wait for something of the router's, with its lock; returns what ``condition`` did."""
    while True:
        with router.cluster.lock:
            found = condition()
            if found:
                return found
        time.sleep(PAUSE / 5)


def member(router, role):
    """A process that is open for a role."""
    return next(m for m in router.cluster.members.values() if (m.state.role, m.state.status) == (role, "open"))


def settled(router):
    """Wait until all processes are there and have nothing left, by what they have said since; nothing is counted any more."""
    began, members = time.monotonic(), list(router.cluster.members.values())

    def clear():
        fresh = all(m.state.status == "open" and m.told and m.replied > began + 0.3 for m in members)
        return fresh and not router._calls and not any(m.told["left"] or m.calls for m in members)

    when(router, clear)
    for state in router.cluster.states:
        assert (state.prompts, state.queued_tokens, state.completions, state.kv_tokens) == (0, 0, 0, 0)
    assert [m.told["reserved"] for m in members] == [0] * len(members)
