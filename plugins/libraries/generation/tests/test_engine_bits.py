"""The serving engine: requests that come and go get the completions that they would get alone, bit by bit."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from engines import FIXTURES, GREEDY, Caller, ask, engine_of
from erniecore_generation.engine.requests import GenerationRequest
from erniecore_generation.generate import generate
from erniecore_generation.sampling import Sampling
from erniecore_lora import adapt as adapting
from erniecore_lora.build import adapt
from erniecore_lora.config import LoraConfig, Variant
from erniecore_lora.shapes import new_sizes
from erniecore_ptq.plugin import kv_cache
from erniecore_weight_only.layers import PackedLinear
from erniecore_weight_only.schemes import Scheme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from erniecore.engine.models.bundles import load_bundle
from erniecore.errors import UsageError

SAMPLINGS = (
    GREEDY,
    Sampling(do_sample=True, temperature=1.5, top_k=9, seed=3),
    Sampling(do_sample=True, top_p=0.9, min_p=0.01, repetition_penalty=1.3, frequency_penalty=0.2, seed=4),
    Sampling(do_sample=True, logit_bias=((5, 4.0), (6, -3.0)), seed=5),
)


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


def outcomes(model, requests, cancels=(), **options):
    """Of requests that arrive while others are decoded; between them some that are cancelled after so many events."""
    engine = engine_of(model, **options)
    engine.start()
    callers, dropped = [], []
    for place, (ids, wanted) in enumerate(requests):
        callers.append(ask(engine, ids, **wanted))
        if place < len(cancels):
            dropped.append(Dropped(engine, ids, cancels[place]))
        if place == len(requests) // 2:
            callers[0].over.wait()
    found = [caller.outcome for caller in callers]
    engine.stop()
    assert (engine.stats().error, engine.stats().state) == ("", "stopped")
    assert [caller.end.reason for caller in dropped] == ["abort"] * len(cancels)
    return found, engine.stats()


class Dropped(Caller):
    """A long request that is cancelled after so many events; 0: at once."""

    def __init__(self, engine, ids, events):
        super().__init__()
        self.engine, self.left, self.ticket = engine, events, None
        self.ticket = engine.submit(GenerationRequest(tuple(ids), GREEDY, 80), self)
        if not events:
            engine.cancel(self.ticket)

    def __call__(self, event):
        self.left -= 1
        if self.left <= 0 and self.ticket is not None:
            self.engine.cancel(self.ticket)
        super().__call__(event)


def check_neighbors(model, speculative, seed, **options):
    requests = mix(seed, int(model.architecture["vocab_size"]))
    # of a text that repeats, so that n-gram lookup proposes something
    requests.append(([7, 8, 9, 7, 8, 9, 7, 8], {"new": 12, "logprobs": 1}))
    cancels = np.random.default_rng(seed).integers(0, 5, 4).tolist()
    alone = [outcomes(model, [request], rows=1, prefix_bytes=0, **options)[0][0] for request in requests]
    for rows, drafter in ((3, "off"), (9, speculative)):
        together, stats = outcomes(
            model, [*requests, *requests], rows=rows, speculative=drafter, cancels=cancels, **options
        )
        assert together == alone + alone
        assert stats.invariant
        assert stats.prefix_hits > 0
        assert (stats.draft_tokens > 0) == (drafter != "off")


@pytest.mark.parametrize(("name", "speculative"), [("dense", "lookup"), ("moe_mtp", "mtp")])
@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 999))
def test_with_a_kernel_a_completion_has_the_same_bits_in_any_company(fixtures, kernel, name, speculative, seed):
    check_neighbors(fixtures[name], speculative, seed)


@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 999))
def test_layer_by_layer_a_completion_has_the_same_bits_in_any_company(toy, seed):
    check_neighbors(toy, "off", seed, invariant=True)


@pytest.mark.parametrize("speculative", ["off", "lookup"])
def test_the_next_turn_of_a_conversation_finds_the_completion_in_the_prefix_cache(
    fixtures, kernel, running, speculative
):
    first, more = [7, 8, 9] * 6, [20, 21, 22]
    engine = running(fixtures["dense"], speculative=speculative)
    neighbor = ask(engine, [5, 6], new=60)
    history = first + ask(engine, first, new=30).ids
    second = ask(engine, history + more, new=9, logprobs=1)
    assert second.end.cached_tokens == (len(history) - 1) // 4 * 4
    alone = ask(running(fixtures["dense"], rows=1, prefix_bytes=0), history + more, new=9, logprobs=1)
    assert second.outcome == alone.outcome
    assert len(neighbor.ids) == 60


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
    with pytest.raises(UsageError, match="another engine runs on this model"):
        running(model)
    engine.stop()
    other = running(model, adapter="other")
    assert ask(other, prompt, **options).ids == alone["other"]
    assert ask(other, prompt, adapter="default").ids == alone["default"][:8]
    other.stop()
    assert generate(model, [prompt], max_new_tokens=9, eos=()).numpy()[0].tolist() == alone["other"]


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
