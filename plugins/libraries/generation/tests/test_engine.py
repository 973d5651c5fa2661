"""The serving engine: requests that come and go get the completions that they would get alone, bit by bit."""

import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import paddle  # noqa: TID253
import pytest
from ernie_third_party_kernels import tensors
from ernie_third_party_kernels.kernel_set import native
from erniecore_conformance.toys.paddle_lm import toy_model
from erniecore_conformance.toys.tokenizer import ToyTokenizer
from erniecore_generation.engine.engine import Engine
from erniecore_generation.engine.requests import (
    EngineStopped,
    Failed,
    Finished,
    GenerationRequest,
    PromptScored,
    QueueFull,
    Tokens,
)
from erniecore_generation.generate import generate
from erniecore_generation.sampling import Sampling
from erniecore_lora import adapt as adapting
from erniecore_lora.build import adapt
from erniecore_lora.config import LoraConfig, Variant
from erniecore_lora.shapes import new_sizes
from erniecore_ops import kernels
from erniecore_ptq.plugin import kv_cache
from erniecore_weight_only.layers import PackedLinear
from erniecore_weight_only.schemes import Scheme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from erniecore.engine.models.bundles import load_bundle
from erniecore.errors import NumericsError, UsageError

FIXTURES = Path(__file__).parents[4] / "tests" / "fixtures" / "models"
GREEDY = Sampling()
SAMPLINGS = (
    GREEDY,
    Sampling(do_sample=True, temperature=1.5, top_k=9, seed=3),
    Sampling(do_sample=True, top_p=0.9, min_p=0.01, repetition_penalty=1.3, frequency_penalty=0.2, seed=4),
    Sampling(do_sample=True, logit_bias=((5, 4.0), (6, -3.0)), seed=5),
)


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


def mix(seed, vocab, count=9):
    """Requests of all sorts, some with a common beginning."""
    numbers = np.random.default_rng(seed)
    common = numbers.integers(4, vocab, 40).tolist()
    found = []
    for stream in range(count):
        shared = common[: int(numbers.integers(0, 41))] if numbers.random() < 0.7 else []
        ids = shared + numbers.integers(4, vocab, int(numbers.integers(1, 12))).tolist()
        options = {"stream": stream, "sampling": SAMPLINGS[int(numbers.integers(len(SAMPLINGS)))]}
        options |= {"logprobs": int(numbers.integers(0, 4)), "min_new_tokens": int(numbers.integers(0, 4))}
        options |= {"stop_ids": frozenset(numbers.integers(4, vocab, vocab // 8).tolist())}
        if numbers.random() < 0.3:
            options["prompt_logprobs"] = 2
        found.append((ids, {"new": int(numbers.integers(1, 14)), **options}))
    return found


def outcomes(model, requests, **options):
    """Of requests that are submitted one after the other, the next while others are decoded; some are cancelled."""
    engine = engine_of(model, **options)
    engine.start()
    callers = [ask(engine, ids, **wanted) for ids, wanted in requests]
    dropped = ask(engine, [4, 5, 6], new=60)
    callers[0].over.wait()
    engine.cancel(dropped.ticket)
    found = [caller.outcome for caller in callers]
    engine.stop()
    assert (engine.stats().error, engine.stats().state) == ("", "stopped")
    return found, engine.stats()


def check_neighbors(model, speculative, seed, **options):
    requests = mix(seed, int(model.architecture["vocab_size"]))
    # of a text that repeats, so that n-gram lookup proposes something
    requests.append(([7, 8, 9, 7, 8, 9, 7, 8], {"new": 12, "logprobs": 1}))
    alone = [outcomes(model, [request], rows=1, prefix_bytes=0, **options)[0][0] for request in requests]
    for rows, drafter in ((3, "off"), (9, speculative)):
        together, stats = outcomes(model, [*requests, *requests], rows=rows, speculative=drafter, **options)
        assert together == alone + alone
        assert stats.invariant
        assert stats.prefix_hits > 0
        assert (stats.draft_tokens > 0) == (drafter != "off")


@pytest.mark.parametrize(("name", "speculative"), [("dense", "lookup"), ("moe_mtp", "mtp")])
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 999))
def test_with_a_kernel_a_completion_has_the_same_bits_in_any_company(fixtures, kernel, name, speculative, seed):
    check_neighbors(fixtures[name], speculative, seed)


@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 999))
def test_layer_by_layer_a_completion_has_the_same_bits_in_any_company(toy, seed):
    check_neighbors(toy, "off", seed, invariant=True)


def test_rows_of_several_adapters_are_decoded_together(kernel, running):
    """Each as with its adapter alone; the weights of the base are shared."""
    model = load_bundle(FIXTURES / "dense", tokenizer=False).bundle.model
    config = LoraConfig(rank=3, targets=("q_proj", "down_proj"))
    model = adapt(model, config, Variant())
    adapting.add(model, "other", new_sizes(config, Variant(), adapting.targets_of(model)))
    paddle.seed(1)
    for name, parameter in model.named_parameters():
        if ".lora." in name:
            parameter.set_value(0.3 * paddle.randn(parameter.shape))
    names, prompt = ("default", "other", "", None), list(range(20, 40))
    options = {"new": 9, "logprobs": 1}
    alone = {}
    for name in names:
        model.set_adapter(name or None)
        alone[name] = generate(model, [prompt], max_new_tokens=9, eos=()).numpy()[0].tolist()
    assert len({tuple(ids) for ids in alone.values()}) == 3
    engine = running(model, adapter=None)
    for _ in range(2):
        callers = {name: ask(engine, prompt, adapter=name, **options) for name in names}
        assert {name: caller.ids for name, caller in callers.items()} == alone
    assert engine.stats().invariant
    assert engine.stats().prefix_hits == 5 * 16
    with pytest.raises(UsageError, match="did you mean other"):
        ask(engine, prompt, adapter="othr")
    assert ask(running(model, adapter="other"), prompt, **options).ids == alone["other"]


def test_quantized_weights_and_caches_serve_as_others_do(kernel):
    packed = load_bundle(FIXTURES / "dense", tokenizer=False).bundle.model
    for layer in packed.sublayers():
        for name, inner in list(layer.named_children()):
            if isinstance(inner, paddle.nn.Linear):
                setattr(layer, name, PackedLinear(inner, Scheme("int8"), name))
    check_neighbors(packed, "lookup", 3)
    cached = load_bundle(FIXTURES / "dense", tokenizer=False).bundle.model
    settings = kv_cache.Config(cache="int8", cache_scales="dynamic")
    ids = np.random.default_rng(0).integers(5, 440, (4, 16))
    check_neighbors(
        kv_cache.ernie_calibrate_model(config=settings, model=cached, batches=[ids]), "off", 3, invariant=True
    )


def test_chunks_change_no_bit_of_a_kernel(fixtures, kernel):
    requests = mix(1, 512, 4)
    whole, fine = (outcomes(fixtures["dense"], requests, chunk=chunk)[0] for chunk in (128, 4))
    assert whole == fine


def test_speculation_without_a_kernel_is_refused_unless_bits_may_change(toy, running):
    with pytest.raises(UsageError, match="change the last bits"):
        running(toy, speculative="lookup", invariant=True)
    engine = running(toy, speculative="lookup")
    assert not engine.stats().invariant
    assert (
        ask(engine, [7, 8, 7, 8, 7], new=9).ids
        == generate(toy, [[7, 8, 7, 8, 7]], max_new_tokens=9, eos=()).numpy()[0].tolist()
    )


def test_log_probabilities_are_those_of_the_model(fixtures, running):
    model, ids = fixtures["dense"], list(range(20, 60))
    caller = ask(running(model), ids, new=3, logprobs=2, prompt_logprobs=3)
    text = ids + caller.ids
    logits = model.logits(model.features(paddle.to_tensor([text])).hidden)[0].astype("float64")
    expected = paddle.nn.functional.log_softmax(logits).numpy()
    _, new, [prompt], reason = caller.outcome
    assert reason == "length"
    assert prompt[0] is None
    assert len(prompt) == len(ids)
    for place, entry in enumerate([*prompt[1:], *new]):
        assert entry.token == text[place + 1]
        np.testing.assert_allclose(entry.logprob, expected[place, entry.token], atol=1e-5)
        assert [token for token, _ in entry.top] == np.argsort(-expected[place], kind="stable")[
            : len(entry.top)
        ].tolist()
        assert entry.logprob == np.float32(entry.logprob)
    assert {len(entry.top) for entry in new} == {2}


def test_a_prompt_can_be_scored_alone(fixtures, running):
    engine = running(fixtures["dense"])
    caller = ask(engine, [5, 6, 7], new=0, prompt_logprobs=0)
    assert caller.end.reason == "length"
    assert [type(event) for event in caller.events] == [PromptScored, Finished]
    with pytest.raises(UsageError, match="nothing to generate"):
        ask(engine, [5], new=0)


class Only:
    """Allows one sequence; fails where it is told to."""

    def __init__(self, tokens, vocab, packed, fails=False):
        self.left, self.vocab, self.packed, self.fails = list(tokens), vocab, packed, fails

    def allowed(self):
        if self.fails and len(self.left) == 1:
            raise RuntimeError("no grammar")
        mask = np.zeros(self.vocab, bool)
        mask[self.left[0]] = True
        return np.packbits(mask, bitorder="little") if self.packed else mask

    def accept(self, token):
        assert token == self.left.pop(0)

    def done(self):
        return not self.left


@pytest.mark.parametrize("packed", [False, True])
def test_a_constraint_decides_what_may_come_and_when_it_is_over(fixtures, running, packed):
    engine = running(fixtures["dense"])
    caller = ask(engine, [5, 6], new=9, constraint=Only([9, 8, 7], 512, packed))
    assert (caller.ids, caller.end.reason) == ([9, 8, 7], "stop")


def test_a_request_that_fails_leaves_the_others_alone(fixtures, running):
    engine, model = running(fixtures["dense"]), fixtures["dense"]
    good = [ask(engine, [5, 6, n], new=12) for n in range(3)]
    bad = ask(engine, [5, 6], new=9, constraint=Only([9, 8], 512, False, fails=True))
    assert isinstance(bad.end, Failed)
    assert str(bad.end.error) == "no grammar"
    assert bad.ids == [9]
    assert [caller.ids for caller in good] == [
        generate(model, [[5, 6, n]], max_new_tokens=12, eos=()).numpy()[0].tolist() for n in range(3)
    ]
    assert (engine.stats().failed, engine.stats().state) == (1, "running")


def test_logits_that_are_not_finite_end_the_request_that_met_them(running):
    model = toy_model(3)
    weight = next(p for n, p in model.named_parameters() if p.shape == [260, 16])
    poisoned = weight.numpy()
    poisoned[30] = np.nan
    weight.set_value(poisoned)
    engine = running(model)
    bad, good = ask(engine, [4, 30], new=3), ask(engine, [4, 5], new=3)
    assert isinstance(bad.end.error, NumericsError)
    assert isinstance(good.end, Finished | Failed)
    assert engine.stats().state == "running"


def test_an_error_of_the_engine_fails_everybody_with_its_cause(running, monkeypatch):
    model, broken = toy_model(3), threading.Event()
    features = model.features

    def breaks(*args, **options):
        if broken.is_set():
            raise MemoryError("the device is gone")
        return features(*args, **options)

    monkeypatch.setattr(model, "features", breaks)
    engine = running(model, rows=2)
    callers = [ask(engine, [4, 5], new=50) for _ in range(5)]
    broken.set()
    assert {str(caller.end.error) for caller in callers} == {"the device is gone"}
    assert engine.stats().state == "failed"
    assert "the device is gone" in engine.stats().error
    with pytest.raises(EngineStopped, match="takes no requests") as caught:
        ask(engine, [4])
    assert isinstance(caught.value.__cause__, MemoryError)


def test_a_cancelled_request_frees_its_row_within_a_step(toy, running):
    """The listener cancels from inside a step; the next one belongs to the request that waited."""
    engine, order = running(toy, rows=1), []
    first, second = Caller(), Caller()

    def listener(event):
        order.append((engine.stats().steps, type(event)))
        if len(order) == 3:
            engine.cancel(first.ticket)
        first(event)

    gate = threading.Event()
    blocked = Caller()
    blocked.ticket = engine.submit(GenerationRequest((4,), GREEDY, 1), lambda event: gate.wait() and blocked(event))
    first.ticket = engine.submit(GenerationRequest((4, 5), GREEDY, 90), listener)
    second.ticket = engine.submit(GenerationRequest((4, 6), GREEDY, 1), second)
    gate.set()
    assert second.end.reason == "length"
    assert (first.end.reason, first.end.new_tokens) == ("abort", 3)
    steps = engine.stats().steps
    assert order[3][1] is Finished
    assert steps - order[2][0] == 1


def test_a_listener_that_raises_ends_its_own_request(toy, running):
    engine = running(toy)

    def raises(event):
        raise KeyError

    engine.submit(GenerationRequest((4, 5), GREEDY, 50), raises)
    assert len(ask(engine, [4, 5], new=60).ids) == 60
    assert engine.stats().aborted == 1


def test_what_cannot_be_done_is_refused_at_once(toy, running):
    engine = running(toy, rows=1, waiting=1, context=20)
    with pytest.raises(UsageError, match="prompt is empty"):
        ask(engine, [])
    with pytest.raises(UsageError, match="do not fit"):
        ask(engine, [4] * 10, new=11)
    with pytest.raises(UsageError, match="outside the vocabulary"):
        ask(engine, [4], sampling=Sampling(logit_bias=((260, 1.0),)))
    with pytest.raises(UsageError, match="no such adapter"):
        ask(engine, [4], adapter="x")
    gate = threading.Event()
    engine.submit(GenerationRequest((4,), GREEDY, 1), lambda event: gate.wait())
    waiting = ask(engine, [5], new=2)
    with pytest.raises(QueueFull, match="too many requests wait"):
        ask(engine, [6])
    gate.set()
    assert len(waiting.ids) == 2


def test_lower_priorities_come_first(toy, running):
    engine, gate, order = running(toy, rows=1), threading.Event(), []
    engine.submit(GenerationRequest((4,), GREEDY, 1), lambda event: gate.wait())
    for priority in (2, 0, 1, 0):
        request = GenerationRequest((5,), GREEDY, 1, priority=priority)
        engine.submit(request, lambda event, mine=priority: order.append(mine) if isinstance(event, Finished) else None)
    gate.set()
    engine.stop(drain=True)
    assert order == [0, 0, 1, 2]


def test_stopping_drains_or_aborts(toy):
    for drain, reasons in ((True, ["length"] * 3), (False, ["abort"] * 3)):
        engine = engine_of(toy, rows=2)
        engine.start()
        callers = [ask(engine, [4, n], new=60) for n in (5, 6, 7)]
        engine.stop(drain=drain)
        assert [caller.end.reason for caller in callers] == reasons
        with pytest.raises(EngineStopped):
            ask(engine, [4])


def test_nothing_is_left_after_two_hundred_requests(toy, running):
    """Neither rows, caches nor blocks beyond the limit."""
    engine, numbers = running(toy, rows=4, prefix_bytes=20000), np.random.default_rng(0)
    callers = []
    for _ in range(200):
        ids = numbers.integers(4, 40, int(numbers.integers(1, 30))).tolist()
        callers.append(ask(engine, ids, new=int(numbers.integers(1, 6)), stream=len(callers)))
        if numbers.random() < 0.2:
            engine.cancel(callers[int(numbers.integers(len(callers)))].ticket)
    for caller in callers:
        caller.over.wait()
    engine.stop()
    stats, scheduler = engine.stats(), engine._scheduler
    assert stats.finished + stats.aborted == 200
    assert stats.aborted > 0
    assert (stats.running, stats.waiting) == (0, 0)
    assert not scheduler.jobs
    assert not scheduler._prefills
    assert not scheduler.lanes[""].groups
    assert 0 < stats.prefix_bytes <= 20000
    assert stats.prefix_bytes == sum(block.num_bytes for block in engine._prefix._blocks.values())
