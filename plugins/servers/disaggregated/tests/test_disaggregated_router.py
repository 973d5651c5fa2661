"""Real processes for prompts and for completions, asked through the router: the same bits as one engine, whatever happens."""

import json
import os
import shutil
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from engines import Caller
from erniecore_disaggregated.plugin import DisaggregatedConfig
from erniecore_disaggregated.router import Router
from erniecore_generation.engine.requests import Failed, Finished, GenerationRequest
from erniecore_generation.sampling import Sampling
from erniecore_openai.plugin import OpenAIConfig
from erniecore_openai.serving import read_model

PAUSE = 0.01
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
    os.environ["OMP_NUM_THREADS"] = "1"
    settings = DisaggregatedConfig(
        prefill=1, decode=2, rows=4, handoff_seconds=3, health_seconds=6, restarts=50, drain_role_seconds=20
    )
    found = Router(settings, directory)
    found.start()
    yield found
    found.stop(drain=False)
    assert not threading.active_count() > 200


def member(router, role, number=0):
    found = [m for m in router.cluster.members.values() if m.state.role == role and m.state.status == "open"]
    return found[number]


def settled(router):
    """Wait until all processes are there and have nothing left, by what they have said since."""
    began = time.monotonic()
    while True:
        with router.cluster.lock:
            members = list(router.cluster.members.values())
            fresh = all(m.state.status == "open" and m.told and m.replied > began + 0.5 for m in members)
            if fresh and not router._calls and not any(m.told["left"] or m.calls for m in members):
                break
        time.sleep(PAUSE)
    for state in router.cluster.states:
        assert (state.prompts, state.queued_tokens, state.completions, state.kv_tokens) == (0, 0, 0, 0)
    assert [m.told["reserved"] for m in members] == [0, 0, 0]


def test_completions_have_the_bits_of_one_process(router, reference):
    wanted = requests(18)
    callers = [ask(router, request) for request in wanted]
    assert [caller.outcome for caller in callers] == reference(wanted)
    settled(router)
    assert router.stats().prefix_hits > 0
    assert router.tally.handed > 0
    assert (router.tally.retried, router.tally.undelivered) == (0, 0)


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
        time.sleep(0.001)


FAULTS = ("prefill killed before", "prefill killed in a transfer", "decode killed after", "decode stopped", "both")


@pytest.mark.parametrize("fault", FAULTS)
def test_no_completion_is_lost_twice_or_wrong_when_a_process_is(router, reference, fault):
    settled(router)
    wanted, before = long(6, FAULTS.index(fault) + 10), replace(router.tally)
    prefill, decode = member(router, "prefill"), member(router, "decode")
    killed = [prefill.process.pid] if "prefill" in fault else [decode.process.pid]
    if fault == "both":
        killed.append(prefill.process.pid)
    if fault == "prefill killed in a transfer":
        # the receiver stands still, so that what was sent is not taken yet
        os.kill(decode.process.pid, signal.SIGSTOP)
    callers = [ask(router, request) for request in wanted]
    if fault == "prefill killed in a transfer":
        when(router, lambda: any(c.first and not c.adopted for c in router._calls.values() if c.decode == decode.name))
    elif fault != "prefill killed before":
        when(
            router,
            lambda: any(c.adopted and len(c.given) > 5 for c in router._calls.values() if c.decode == decode.name),
        )
    for pid in killed:
        os.kill(pid, signal.SIGSTOP if fault == "decode stopped" else signal.SIGKILL)
    if fault == "prefill killed in a transfer":
        os.kill(decode.process.pid, signal.SIGCONT)
    assert [caller.outcome for caller in callers] == reference(wanted)
    assert all(sum(isinstance(e, Finished | Failed) for e in caller.events) == 1 for caller in callers)
    assert router.tally.retried > before.retried
    settled(router)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in killed)
