"""A router with real processes for tests of the server ``disaggregated``, and requests whose outcomes one process gives too."""

import os
import signal
import threading
import time
from dataclasses import dataclass, replace

import numpy as np
import pytest
from engines import Caller
from erniecore_disaggregated.config import DisaggregatedConfig
from erniecore_disaggregated.policy import may_switch
from erniecore_disaggregated.router import Router
from erniecore_generation.engine.requests import Failed, Finished, GenerationRequest
from erniecore_generation.sampling import Sampling
from erniecore_openai.config import OpenAIConfig
from erniecore_openai.constraints import GrammarConstraint
from erniecore_openai.grammars import grammar_of, regex_term
from erniecore_openai.serving import read_model
from talker import roomy

from erniecore.errors import UsageError

#: seconds between two looks
PAUSE = 0.005
PENALIZED = Sampling(do_sample=True, top_p=0.9, repetition_penalty=1.3, frequency_penalty=0.2, seed=4)
SAMPLINGS = (Sampling(), Sampling(do_sample=True, temperature=1.5, seed=3), PENALIZED)


def requests(count, seed=0, new=24, longest=150, vocabulary=None):
    """Requests of all sorts, half of them with a common beginning; with a ``vocabulary`` every fourth one keeps to a grammar."""
    numbers = np.random.default_rng(seed)
    common = numbers.integers(4, 300, 96).tolist()
    found = []
    for stream in range(count):
        begun = common if stream % 2 else []
        ids = begun + numbers.integers(4, 300, int(numbers.integers(1, longest))).tolist()
        options = {"logprobs": stream % 3, "prompt_logprobs": 1 if stream % 5 == 2 else None, "stream": stream}
        options["stop_ids"] = frozenset(numbers.integers(4, 300, 4).tolist())
        if vocabulary is not None and stream % 4 == 3:
            grammar = vocabulary.grammar(grammar_of(regex_term("([a-f]{1,3} [0-9])+")))
            options["constraint"] = GrammarConstraint(vocabulary, grammar, frozenset())
        found.append(GenerationRequest(tuple(ids), SAMPLINGS[stream % 3], int(numbers.integers(1, new)), **options))
    return found


@pytest.fixture(scope="module")
def directory(talker, tmp_path_factory):
    """The model that talks, with room for long prompts."""
    return roomy(talker, tmp_path_factory.mktemp("roomy") / "model", 4096)


@pytest.fixture(scope="module")
def single(directory):
    """One process that does everything, without a prefix cache."""
    model = read_model(OpenAIConfig(rows=8, prefix_bytes=0), directory)
    model.engine.start()
    yield model
    model.engine.stop(drain=False)


@pytest.fixture(scope="module")
def engine(single):
    """Its engine."""
    return single.engine


@pytest.fixture(scope="module")
def vocabulary(single):
    """Its vocabulary, for grammars."""
    return single.vocabulary


@pytest.fixture(scope="module")
def reference(engine):
    """Outcomes of requests in one process."""
    return lambda wanted: outcomes(engine, wanted)


def outcomes(engine, wanted):
    """What one process gives, a hundred requests at a time."""
    found = []
    for start in range(0, len(wanted), 100):
        callers = [ask(engine, request) for request in wanted[start : start + 100]]
        found += [caller.outcome for caller in callers]
    return found


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


def long(count, seed, new=300, vocabulary=None):
    """Requests whose completions take a while."""
    made = requests(count, seed, vocabulary=vocabulary)
    return [replace(r, max_new_tokens=new, stop_ids=frozenset(), logprobs=0) for r in made]


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


@dataclass(slots=True)
class Storm:
    """What a storm did, and how its completions ended: equal to those of one process, explicit errors, wrong."""

    switches: int = 0
    kills: int = 0
    requests: int = 0
    equal: int = 0
    errors: int = 0
    wrong: int = 0


def storm(router, engine, vocabulary, *, switches, kills=0, seed=0, together=10):
    """Change roles, and kill processes now and then, while ``together`` completions are always on their way, some of which keep
    to a grammar of the ``vocabulary``; every one is compared with that of ``engine``, which is one process."""
    numbers, found, over = np.random.default_rng(seed), Storm(), threading.Event()
    wanted, callers = [], []

    def feed():
        while not over.is_set():
            for request in requests(together, seed + len(wanted), new=80, vocabulary=vocabulary):
                wanted.append(request)
                callers.append(ask(router, request))
            callers[-together // 2].over.wait()

    feeding = threading.Thread(target=feed)
    feeding.start()
    deadly = set(numbers.choice(switches, kills, replace=False).tolist())
    while found.switches < switches:
        if found.switches in deadly:
            deadly.remove(found.switches)
            victims = [m for m in router.cluster.members.values() if m.process is not None]
            os.kill(victims[int(numbers.integers(len(victims)))].process.pid, signal.SIGKILL)
            found.kills += 1
        states = [
            s for s in router.cluster.states if s.status == "open" and not may_switch(router.cluster.states, s.name)
        ]
        if not states:
            time.sleep(PAUSE)
            continue
        state = states[int(numbers.integers(len(states)))]
        try:
            router.switch(state.name, "decode" if state.role == "prefill" else "prefill")
            found.switches += 1
        except UsageError:
            time.sleep(PAUSE)  # it was killed, or the other one of its role was
    over.set()
    feeding.join()
    got, expected = [caller.outcome for caller in callers], outcomes(engine, wanted)
    found.requests, found.equal = len(wanted), sum(a == b for a, b in zip(got, expected, strict=True))
    found.errors = sum(isinstance(caller.end, Failed) for caller in callers)
    found.wrong = found.requests - found.equal - found.errors
    ends = [sum(isinstance(event, Finished | Failed) for event in caller.events) for caller in callers]
    assert ends == [1] * len(callers)
    return found
