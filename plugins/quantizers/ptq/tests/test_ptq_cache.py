"""Keys and values as codes: what is stored, what it stands for, what decoding computes with it, and what is refused."""

import copy

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_generation.cache import StaticCache
from erniecore_generation.generate import generate
from erniecore_ops import kernels
from erniecore_ptq.caching import KVCacheCodec, attach
from erniecore_ptq.plugin import gptq, kv_cache

from erniecore.api import NumericsError, UsageError
from erniecore.kernels import choose, use

RNG = np.random.default_rng(0)
BATCHES = [RNG.integers(5, 440, (4, 24)) for _ in range(2)]
QUANT_DTYPES = ["int8", "int4", "fp8"]
#: half a step at a scale of 1 / top, or half an ulp of E4M3
ERROR = {"int8": 0.5 / 127, "int4": 0.5 / 7, "fp8": 2**-4}


def stored(model, quant_dtype="int8", scales="static", batches=BATCHES):
    config = kv_cache.Config(cache=quant_dtype, cache_scales=scales)
    return kv_cache.ernie_calibrate_model(config=config, model=model, batches=batches)


def logits(model, ids=BATCHES[0]):
    model.eval()
    with paddle.no_grad():
        return model(paddle.to_tensor(ids)).numpy()


@pytest.mark.parametrize("quant_dtype", QUANT_DTYPES)
@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
def test_codes_are_small_and_stand_for_nearly_the_same(quant_dtype, static):
    x = paddle.to_tensor(RNG.standard_normal((2, 5, 3, 8)).astype(np.float32))
    codec = KVCacheCodec(quant_dtype, (1, 3, 8), static=static)
    if static:
        codec.keys_scale.set_value(
            x.abs().max(axis=[0, 1]).unsqueeze(0) / {"int8": 127, "int4": 7, "fp8": 448}[quant_dtype]
        )
    stored = codec.encode(0, "keys", x)
    assert stored[0].size == x.size // (2 if quant_dtype == "int4" else 1)
    assert stored[0].element_size() == 1
    assert len(stored) == (1 if static else 2)
    found = codec.decode(0, "keys", stored, x).numpy()
    largest = np.abs(x.numpy()).max(axis=(0, 1) if static else -1, keepdims=True)
    assert (np.abs(found - x.numpy()) <= ERROR[quant_dtype] * largest * 1.001).all()


@pytest.mark.parametrize("quant_dtype", QUANT_DTYPES)
def test_what_is_beyond_the_calibration_data_is_cut_off(quant_dtype):
    codec = KVCacheCodec(quant_dtype, (1, 1, 2), static=True)
    codec.keys_scale.set_value(paddle.ones([1, 1, 2]))
    x = paddle.to_tensor([[[[1e6, -1e6]]]], "float32")
    most = codec.largest(0, "keys").numpy()
    np.testing.assert_array_equal(
        codec.decode(0, "keys", codec.encode(0, "keys", x), x).numpy()[0, 0], most * [[1, -1]]
    )


@pytest.mark.parametrize("quant_dtype", QUANT_DTYPES)
@pytest.mark.parametrize("scales", ["static", "dynamic"])
def test_decoding_from_codes_is_the_whole_pass_with_codes(quant_dtype, scales, make_model, monkeypatch):
    """Token by token from a cache of codes, and all at once without one: the same, so a loss says what decoding computes."""
    # kernels sum a row alike in a whole pass and alone; the reference does not, and a value at a border is rounded elsewhere
    monkeypatch.setattr(kernels, "_in_use", {})
    use(choose("cpu", {}), lambda: 1)
    model = stored(make_model("moe"), quant_dtype, scales)
    ids, found = BATCHES[0][:2], []
    cache = StaticCache(int(model.architecture["num_hidden_layers"]), 24, model.cache_codec)
    with paddle.no_grad():
        for start, stop in [(0, 6), *((i, i + 1) for i in range(6, 24))]:
            hidden = model.features(paddle.to_tensor(ids[:, start:stop]), cache=cache).hidden
            found.append(model.logits(hidden).numpy())
    np.testing.assert_allclose(np.concatenate(found, axis=1), logits(model, ids), atol=2e-5)
    assert np.abs(logits(model, ids) - logits(make_model("moe"), ids)).max() > 1e-4


def test_layers_of_prediction_ahead_keep_their_keys():
    """They come after those that were calibrated."""
    x = paddle.to_tensor(RNG.standard_normal((1, 2, 3, 8)).astype(np.float32))
    cache = StaticCache(2, 4, KVCacheCodec("int4", (1, 3, 8), static=False))
    for layer, same in ((0, False), (1, True)):
        keys, _ = cache.update(layer, x, x)
        assert (keys.numpy().tobytes() == x.numpy().tobytes()) == same


def test_generation_keeps_codes_and_compacts_them(make_model):
    """Rows of different lengths end at different times: the cache is made smaller, and rows do not depend on each other."""
    model = stored(make_model("moe"), "int4", "dynamic")
    ids = BATCHES[0][:3, :6]
    whole = generate(model, ids, max_new_tokens=8, eos=()).numpy()
    for row in range(3):
        np.testing.assert_array_equal(generate(model, ids[row], max_new_tokens=8, eos=()).numpy()[0], whole[row])
    np.testing.assert_array_equal(generate(model, ids, max_new_tokens=8, eos=(), use_cache=False).numpy(), whole)


@pytest.mark.parametrize(("quant_dtype", "most"), [("int8", 0.26), ("fp8", 0.26), ("int4", 0.13)])
def test_buffers_are_as_small_as_the_codes(quant_dtype, most, make_model):
    """Against float32, static scales."""
    model, sizes = stored(make_model("dense"), quant_dtype), []
    for codec in (model.cache_codec, None):
        cache = StaticCache(int(model.architecture["num_hidden_layers"]), 32, codec)
        model.features(paddle.to_tensor(BATCHES[0]), cache=cache)
        sizes.append(cache.num_bytes)
    assert sizes[0] <= most * sizes[1]


def test_rows_are_kept_and_joined_with_their_scales():
    codec, x = (
        KVCacheCodec("int4", (1, 2, 4), static=False),
        paddle.to_tensor(RNG.standard_normal((3, 4, 2, 4)), "float32"),
    )
    cache = StaticCache(1, 6, codec)
    keys, _ = cache.update(0, x, x)
    cache.keep([2, 0])
    columns = np.array([[1, 3], [0, 2]])
    amax = StaticCache.packed([(cache, np.array([0, 1]), columns)], 5)
    again, _ = amax.update(0, x[:2, :1], x[:2, :1])
    expected = np.stack([keys.numpy()[2, [1, 3]], keys.numpy()[0, [0, 2]]])
    np.testing.assert_array_equal(again.numpy()[:, :2], expected)


def test_a_copy_computes_with_its_own_weights(make_model):
    model = stored(make_model("dense"))
    other, expected = copy.deepcopy(model), logits(model)
    for parameter in model.parameters():
        parameter.set_value(parameter * 0.5)
    np.testing.assert_array_equal(logits(other), expected)


def test_losses_are_told_per_layer_and_finer_codes_lose_less(make_model):
    found = {quant_dtype: stored(make_model("dense"), quant_dtype).cache_codec.measured for quant_dtype in QUANT_DTYPES}
    for part in ("keys", "values"):
        int8, fp8, int4 = (np.array(found[quant_dtype][part]) for quant_dtype in ("int8", "fp8", "int4"))
        assert (int8 > fp8).all()
        assert (fp8 > int4).all()
        assert int4.min() > 10


def test_every_quantizer_of_finished_models_can_have_it(make_model):
    config = gptq.Config(cache="int8", group_size=0, bits=8)
    model = gptq.ernie_calibrate_model(config=config, model=make_model("dense"), batches=BATCHES)
    assert model.cache_codec.quant_dtype == "int8"
    assert model.cache_codec.known


def test_scales_that_are_not_known_are_refused_in_decoding(make_model):
    model = attach(make_model("dense"), "int8", static=True)
    logits(model)
    with pytest.raises(UsageError, match="not calibrated"):
        generate(model, BATCHES[0][:1, :4], max_new_tokens=2)


def test_another_codec_and_odd_heads_are_refused(make_model):
    model = stored(make_model("dense"))
    with pytest.raises(UsageError, match="another scheme"):
        attach(model, "int4", static=True)
    with pytest.raises(UsageError, match="an even size"):
        KVCacheCodec("int4", (1, 2, 5), static=True)


def test_packed_rows_need_their_ends(make_model):
    """Without a cache models see where samples begin by positions; with one they do not, so silence would mix samples."""
    model, ids = stored(make_model("dense")), paddle.to_tensor(BATCHES[0][:1, :6])
    with pytest.raises(UsageError, match="startend_row_indices"):
        model.features(ids, position_ids=paddle.to_tensor([[0, 1, 2, 0, 1, 2]]))


def test_keys_that_are_not_finite_are_refused(make_model):
    model = make_model("dense")
    weight = model.model.layers[1].self_attn.k_proj.weight
    weight.set_value(paddle.full_like(weight, float("nan")))
    with pytest.raises(NumericsError, match="keys"):
        stored(model)
