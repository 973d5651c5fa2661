"""One engine computes prompts, another one decodes: the same bits as one engine that does both."""

from types import SimpleNamespace

import numpy as np
import pytest
from engines import FIXTURES, GREEDY, Caller, ask
from erniecore_conformance.toys.tokenizer import ToyTokenizer
from erniecore_generation.engine.handoff import Adopted, HandoffEngine, HandoffRequest
from erniecore_generation.engine.requests import Failed, Finished
from erniecore_generation.sampling import Sampling
from erniecore_ptq.plugin import kv_cache

from erniecore.engine.models.bundles import load_bundle

PENALIZED = Sampling(do_sample=True, top_p=0.9, repetition_penalty=1.3, frequency_penalty=0.2, seed=4)
COMMON = np.random.default_rng(0).integers(4, 60, 33).tolist()
REQUESTS = [
    ([*COMMON, 5], {"new": 9, "logprobs": 2}),
    ([*COMMON, 9, 8], {"new": 12, "sampling": Sampling(do_sample=True, temperature=1.5, seed=3), "logprobs": 0}),
    ([7, 8, 9, 7, 8, 9, 7, 8], {"new": 14, "sampling": PENALIZED, "prompt_logprobs": 2, "logprobs": 1, "stream": 5}),
    (COMMON[:16], {"new": 1}),
    (COMMON[:17], {"new": 6, "sampling": PENALIZED, "min_new_tokens": 3, "stop_ids": frozenset(range(4, 60))}),
    ([*COMMON, 5], {"new": 9, "logprobs": 2}),
]


class Pair(Caller):
    """A request that one engine computes the prompt of and another one decodes; a sink that notes (start, end)."""

    def __init__(self, prefill, decode, ids, new, sampling=GREEDY, **options):
        super().__init__()
        self.decode, self.told, self.layers = decode, [], None
        self.request = dict(ids=tuple(ids), sampling=sampling, max_new_tokens=new, **options)
        prefill.submit(HandoffRequest(**self.request, sink=self), self)

    def columns(self, start, layers):
        self.told.append((start, start + layers[0][0].shape[1]))
        before = self.layers or [[array[:, :0] for array in layer] for layer in layers]
        self.layers = [
            [np.concatenate(pair, axis=1) for pair in zip(old, new, strict=True)]
            for old, new in zip(before, layers, strict=True)
        ]

    def handed(self, state):
        self.state = state
        self.decode.submit(HandoffRequest(**self.request, adopted=Adopted(state, self.layers)), self)


@pytest.fixture
def engines():
    """Starts engines that hand over, and stops them after the test."""
    started = []

    def start(model, **options):
        options = {"chunk": 16, "block": 4, "invariant": True, **options}
        started.append(HandoffEngine(SimpleNamespace(model=model), ToyTokenizer(), **options))
        started[-1].start()
        return started[-1]

    yield start
    for engine in started:
        engine.stop(drain=False)


def check(engines, model, prefix_bytes=1 << 20, **options):
    whole = engines(model, rows=2, prefix_bytes=0, **options)
    expected = [ask(whole, ids, **wanted).outcome for ids, wanted in REQUESTS]
    whole.stop()
    prefill, decode = (engines(model, rows=rows, prefix_bytes=prefix_bytes, **options) for rows in (2, 3))
    pairs = [Pair(prefill, decode, ids, **wanted) for ids, wanted in REQUESTS]
    assert [pair.outcome for pair in pairs] == expected
    assert (prefill.stats().prefix_hits > 0) == (prefix_bytes > 0)
    assert decode.stats().prompt_tokens == 0
    assert [prefill.stats().running, decode.stats().running] == [0, 0]
    for pair, (ids, wanted) in zip(pairs, REQUESTS, strict=True):
        over = wanted["new"] == 1 or not hasattr(pair, "state")
        starts = [0, *(end for _, end in pair.told)]
        assert [start for start, _ in pair.told] == starts[:-1]
        assert over or starts[-1] == len(ids)
    return pairs, decode


@pytest.mark.parametrize(("name", "speculative"), [("dense", "lookup"), ("moe_mtp", "mtp")])
@pytest.mark.parametrize("prefix_bytes", [0, 1 << 20])
def test_a_prompt_that_is_handed_over_goes_on_with_the_same_bits(
    fixtures, kernel, engines, name, speculative, prefix_bytes
):
    check(engines, fixtures[name], prefix_bytes)
    pairs, decode = check(engines, fixtures[name], prefix_bytes, speculative=speculative)
    # the drafter's layers were handed over as well: it proposes what it would have proposed
    drafted = sum(pair.state.draft_tokens for pair in pairs if hasattr(pair, "state")) + decode.stats().draft_tokens
    assert drafted > 0
    whole = engines(fixtures[name], rows=2, prefix_bytes=0, speculative=speculative)
    assert prefix_bytes or drafted == sum(ask(whole, ids, **wanted).end.draft_tokens for ids, wanted in REQUESTS)


def test_layer_by_layer_too(toy, engines):
    check(engines, toy)


def test_quantized_caches_travel_as_they_are(engines):
    model = load_bundle(FIXTURES / "dense", tokenizer=False).bundle.model
    settings = kv_cache.Config(cache="int8", cache_scales="dynamic")
    ids = np.random.default_rng(0).integers(5, 440, (4, 16))
    pairs, _ = check(engines, kv_cache.ernie_calibrate_model(config=settings, model=model, batches=[ids]))
    assert pairs[0].layers[0][0].dtype == np.int8


@pytest.mark.parametrize("method", ["columns", "handed"])
def test_a_sink_that_raises_fails_its_own_request(toy, engines, method):
    engine = engines(toy, rows=2)
    failing = SimpleNamespace(columns=lambda *a: None, handed=lambda state: None)

    def refuse(*arguments):
        raise OSError("no room")

    setattr(failing, method, refuse)
    callers = [Caller(), Caller()]
    for caller, sink in zip(callers, (failing, None), strict=True):
        engine.submit(HandoffRequest(tuple(COMMON), GREEDY, 4, sink=sink), caller)
    assert (type(callers[0].end), str(callers[0].end.error)) == (Failed, "no room")
    assert (type(callers[1].end), len(callers[1].ids)) == (Finished, 4)
    assert engine.stats().failed == 1
