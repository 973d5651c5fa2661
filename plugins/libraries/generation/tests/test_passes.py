"""Whole passes in one call of a kernel against the model layer by layer: the same tokens, logits and streams, whatever the
model is made of, on every instruction set and any number of threads; and when they must not be taken."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import paddle  # noqa: TID253
import pytest
from decoder_models import EVEN, KINDS, ROUTED, SIZES, build, decode, packed, prompts
from ernie_third_party_kernels import library
from ernie_third_party_kernels.kernel_set import native
from erniecore_ernie45_moe.plugin import plugin as moe
from erniecore_generation.batching import Pool
from erniecore_generation.generate import Decoder, evaluating, generate
from erniecore_generation.passes import Passes
from erniecore_generation.sampling import Sampling
from erniecore_generation.speculate import make_drafter
from erniecore_lora.build import adapt
from erniecore_lora.config import LoraConfig, Variant
from erniecore_weight_only.plugin import wint8
from erniecore_weight_only.schemes import Scheme

from erniecore.api import ops

pytestmark = pytest.mark.skipif(bool(native.fault()), reason="the library was not built")


@pytest.fixture(scope="module")
def models():
    return {kind: build(sizes) for kind, sizes in KINDS.items()}


def agree(model, use, threads=2, isa=""):
    use(0)
    tokens, logits, whole = decode(model)
    use(threads, isa)
    found_tokens, found_logits, found_whole = decode(model)
    assert not whole
    assert found_whole
    assert np.array_equal(found_tokens, tokens)
    np.testing.assert_allclose(found_logits, logits, rtol=0, atol=1e-5 * np.abs(logits).max())


@pytest.mark.parametrize("isa", library.LIBRARIES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_as_layer_by_layer(models, use, kind, isa):
    if isa not in library.usable(library.processor_flags()):
        pytest.skip(f"no library {isa} for this processor")
    agree(models[kind], use, isa=isa)


SCHEMES = [Scheme("int8"), Scheme("int4"), Scheme("int4", 32), Scheme("nf4", 16)]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_packed_weights(use, scheme):
    agree(packed({"intermediate_size": 71}, scheme), use)


@pytest.mark.parametrize("isa", library.LIBRARIES)
@pytest.mark.parametrize("scheme", [Scheme("int8"), Scheme("int4"), Scheme("int4", 64), Scheme("int4", 128)])
def test_packed_weights_with_whole_lines(use, scheme, isa):
    if isa not in library.usable(library.processor_flags()):
        pytest.skip(f"no library {isa} for this processor")
    agree(packed(EVEN, scheme), use, isa=isa)


@pytest.mark.parametrize("scheme", [Scheme("int8"), Scheme("int4"), Scheme("int4", 64)])
def test_rows_with_packed_weights_have_the_bits_that_they_have_alone(use, scheme):
    model, many = packed(EVEN, scheme), [7, 1, 12, *range(1, 18)]
    use(1)
    rows = prompts(model, many)
    logits = decode(model, rows, 3)[1]
    use(2)
    assert np.array_equal(decode(model, rows, 3)[1], logits)
    for row in (0, 2, 19):
        assert np.array_equal(decode(model, [rows[row]], 3)[1][:, 0], logits[:, row])


@pytest.mark.parametrize("isa", library.LIBRARIES)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("sizes", [{}, {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32}])
def test_weights_in_bfloat16_are_what_they_stand_for(use, tied, isa, sizes):
    """Each weight in both orders, and stacks; the model holds the same numbers in float32."""
    if isa not in library.usable(library.processor_flags()):
        pytest.skip(f"no library {isa} for this processor")
    model = build({**ROUTED, "tie_word_embeddings": tied, "vocab_size": 131, **sizes})
    for parameter in model.parameters():
        parameter.set_value(parameter.astype("bfloat16").astype("float32"))
    whole = model.decoder_plan()

    def halves(tensor):
        return tensor.astype("bfloat16")

    def stored(projection, turned):
        weight, stays = projection.weight, projection.transposed == turned
        order = [*range(weight.ndim - 2), weight.ndim - 1, weight.ndim - 2]
        return replace(projection, weight=halves(weight if stays else weight.transpose(order)), transposed=turned)

    def block(old, turned):
        routed = old.experts and replace(
            old.experts, **{name: stored(getattr(old.experts, name), turned) for name in ("gate", "up", "down")}
        )
        mlp = old.mlp and tuple(stored(projection, turned) for projection in old.mlp)
        return replace(old, mlp=mlp, experts=routed, **{name: stored(getattr(old, name), turned) for name in "qkvo"})

    use(2, isa)
    rng, heads = np.random.default_rng(3), [1, 14, model.arch.num_key_value_heads, model.arch.head_dim]
    ids, found = rng.integers(0, 131, (1, 14)), []
    for plan in (whole, *(replace(whole, blocks=tuple(block(b, t) for b in whole.blocks)) for t in (False, True))):
        if plan is not whole:
            plan = replace(plan, embedding=halves(whole.embedding), head=stored(whole.head, whole.head.transposed))
        step = ops.decoder_step(plan)
        caches = [[paddle.zeros(heads) for _ in plan.blocks] for _ in range(2)]
        for start, stop in ((0, 12), (12, 13), (13, 14)):
            part = np.arange(start, stop)[None]
            places = np.arange(stop - start)
            logits = step.run(ops.NewTokens(ids[:, start:stop], part, None, *caches, start, places))
        found.append(logits)
    for logits in found[1:]:
        np.testing.assert_allclose(logits, found[0], rtol=0, atol=1e-5 * np.abs(found[0]).max())


@pytest.mark.parametrize("kind", ["dense", "moe", "dense with biases, untied"])
def test_an_embedding_of_bfloat16_values_stays_in_bfloat16(use, kind):
    """The same tokens and logits as in float32, in one call, layer by layer and for a long prompt; other values stay."""
    model, rows = build(KINDS[kind]), [[5, 6, 7] * 60]
    weight = model.model.embed_tokens.weight
    model.hold_embedding()
    assert model.model.embed_tokens.weight is weight
    weight.set_value(weight.astype("bfloat16").astype("float32"))
    use(0)
    before, long = decode(model), decode(model, rows, 3)
    model.hold_embedding()
    frozen = model.model.embed_tokens.weight
    assert frozen.dtype == paddle.bfloat16
    assert [p.shape for n, p in model.named_parameters() if n == "model.embed_tokens.weight"] == [weight.shape]
    for threads in (0, 2):
        use(threads)
        for expected, found in ((before, decode(model)), (long, decode(model, rows, 3))):
            assert found[2] == bool(threads)
            assert np.array_equal(found[0], expected[0])
            np.testing.assert_allclose(found[1], expected[1], rtol=0, atol=1e-5 * np.abs(expected[1]).max())


@pytest.mark.parametrize("isa", library.LIBRARIES)
@pytest.mark.parametrize("head", ["int8", "bf16"])
@pytest.mark.parametrize("kind", ["dense", "wide", "moe", "dense with biases, untied", "tied, with a bias"])
def test_packed_heads(use, kind, head, isa):
    """A head in int8 or bfloat16, and the embedding that shares its weight, beside linear layers in int8."""
    if isa not in library.usable(library.processor_flags()):
        pytest.skip(f"no library {isa} for this processor")
    model = build(KINDS.get(kind, {**EVEN, "use_bias": True, "weight_share_add_bias": True}))
    agree(wint8.ernie_quantize_model(config=wint8.Config(head=head), model=model, phase="train"), use, isa=isa)


def test_rows_with_a_packed_head_have_the_bits_that_they_have_alone(use):
    model, many = build(EVEN), [7, 1, 12, *range(1, 18)]
    model = wint8.ernie_quantize_model(config=wint8.Config(head="int8"), model=model, phase="train")
    use(2)
    rows = prompts(model, many)
    logits = decode(model, rows, 3)[1]
    for row in (0, 2, 19):
        assert np.array_equal(decode(model, [rows[row]], 3)[1][:, 0], logits[:, row])


def test_an_adapter_that_is_not_merged(use):
    model = adapt(build({"use_bias": True}), LoraConfig(rank=3, targets=("q_proj", "down_proj")), Variant())
    for name, parameter in model.named_parameters():
        if name.endswith(".B"):
            parameter.set_value(0.2 * paddle.randn(parameter.shape))
    agree(model, use)


@pytest.mark.parametrize("kind", ["dense", "moe", "wide"])
def test_bits_depend_neither_on_threads_nor_on_neighbors(models, use, kind):
    model = models[kind]
    use(1)
    _, logits, _ = decode(model)
    for threads in (2, 3, 5):
        use(threads)
        assert np.array_equal(decode(model)[1], logits)
    for row, prompt in enumerate(prompts(model)):
        assert np.array_equal(decode(model, [prompt])[1][:, 0], logits[:, row])


@pytest.mark.parametrize(("kind", "draft"), [("dense", "lookup"), ("moe", "lookup"), ("moe with mtp", "mtp")])
def test_continuous_batching_with_draft_tokens(models, use, kind, draft):
    model, found = models[kind], []
    rows = [[5, 6, 7, 8, 5, 6, 7], *prompts(model, (3, 9, 1, 6)), [9, 9, 9, 9]]
    for threads in (0, 2):
        use(threads)
        with evaluating(model):
            pool = Pool(
                model,
                rows,
                sampling=Sampling(do_sample=True, temperature=0.5, seed=1),
                max_new_tokens=[3, 12, 7, 20, 9, 15],
                slots=3,
                copies=1 if draft == "mtp" else 2,
                drafter=make_drafter(model, draft),
            )
            logits = [chosen.logits for chosen in pool.run()]
        found.append((pool.ids, pool.draft_tokens.tolist(), np.concatenate(logits)))
    assert found[0][:2] == found[1][:2]
    assert sum(found[0][1]) > 0
    np.testing.assert_allclose(found[1][2], found[0][2], rtol=0, atol=1e-5 * np.abs(found[0][2]).max())


def test_a_long_prompt_goes_layer_by_layer_and_its_completion_does_not(models, use, monkeypatch):
    model, calls, real = models["dense"], [], models["dense"].features
    use(2)
    with evaluating(model):
        passes = Passes(model)
        monkeypatch.setattr(model, "features", lambda ids, **kw: calls.append(ids.shape[1]) or real(ids, **kw))
        decoder = Decoder(model, np.full((1, 200), 7), sampling=Sampling(), max_new_tokens=4)
        decoder._passes = passes
        tokens = [decoder.step() for _ in range(4)]
    assert calls == [200]
    monkeypatch.undo()
    assert np.array_equal(tokens, decode(model, [[7] * 200], 4)[0])


def test_weights_are_followed_when_training_goes_on(use):
    model = build({})
    use(2)
    first = generate(model, [[5, 6, 7]], max_new_tokens=5).numpy()
    model.train()
    optimizer = paddle.optimizer.SGD(learning_rate=5.0, parameters=model.parameters())
    model(paddle.to_tensor([[5, 6, 7, 8]])).square().mean().backward()
    optimizer.step()
    agree(model, use)
    assert not np.array_equal(generate(model, [[5, 6, 7]], max_new_tokens=5).numpy(), first)


def test_weights_that_move_between_two_steps_are_followed(use):
    model, ids = build({}), np.array([[5, 6, 7]])
    use(1)
    with evaluating(model):
        decoder = Decoder(model, ids, sampling=Sampling(), max_new_tokens=3)
        decoder.step()
        weight = model.model.layers[0].mlp.up_proj.weight
        moved = (weight * 2.0).clone()
        moved._share_buffer_to(weight)
        decoder.step()
        found = decoder.logits
    del moved
    use(0)
    with evaluating(model):
        weight.set_value(weight / 2.0)
        other = Decoder(model, ids, sampling=Sampling(), max_new_tokens=3)
        other.step()
        weight.set_value(weight * 2.0)
        other.step()
    np.testing.assert_allclose(found, other.logits, atol=1e-5 * np.abs(found).max())


def hooked(model):
    model.model.layers[0].mlp.register_forward_post_hook(lambda layer, inputs, output: output * 2)


def patched(model):
    inner = model.model.layers[0].self_attn
    inner.forward = lambda x, context, run=inner.forward: 2 * run(x, context)


def another_layer(model):
    layer = model.model.layers[0].mlp
    layer.__class__ = type("Cut", (type(layer),), {})


def another_linear(model):
    layer = model.model.layers[0].mlp.up_proj
    layer.__class__ = type("Cut", (type(layer),), {})


def other_numbers(model):
    model.to(dtype="float64")  # Layer.bfloat16 does nothing on a processor without AVX-512


@pytest.mark.parametrize("change", [hooked, patched, another_layer, another_linear, other_numbers])
def test_what_cannot_be_described_runs_layer_by_layer(use, change):
    model = build({})
    use(1)
    assert Passes(model).in_one_call
    change(model)
    assert not Passes(model).in_one_call


def test_a_capacity_runs_layer_by_layer(use):
    architecture = {**SIZES, **ROUTED}
    config = moe.Config(capacity=(1.0, 1.0, 1.0))
    use(1)
    assert not Passes(moe.ernie_build_model(config=config, architecture=architecture, dtype="float32")).in_one_call


def test_without_a_kernel_the_model_runs_itself(models, use):
    use(0)
    assert ops.decoder_step(models["dense"].decoder_plan()) is None
    assert not Passes(SimpleNamespace(architecture={})).in_one_call


def test_an_unknown_token_is_refused(models, use):
    model = models["dense"]
    use(1)
    with evaluating(model):
        decoder = Decoder(model, np.array([[5]]), sampling=Sampling(), max_new_tokens=2)
        decoder._ids[0, 0] = model.arch.vocab_size
        with pytest.raises(ValueError, match="token ids"):
            decoder.step()
