"""Low-rank adapters beside packed weights: as beside the numbers in floating point, bit of memory included."""

import copy

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_lora import adapt
from erniecore_lora import plugin as lora
from erniecore_lora.build import load
from erniecore_lora.save import save
from erniecore_oft.plugin import plugin as oft
from erniecore_vera.plugin import plugin as vera
from erniecore_weight_only.packing import pack_model, packed_weights
from erniecore_weight_only.plugin import nf4, wint4, wint4_8, wint8

from erniecore.api import UsageError
from erniecore.engine.models.reference_model import make_reference

IDS = np.random.default_rng(0).integers(5, 440, (2, 19))
ADAPTERS = [lora.lora, lora.rslora, lora.dora]


def adapted(model, adapter=lora.lora, **settings):
    paddle.seed(1)
    return adapter.ernie_adapt_model(config=adapter.Config(rank=2, **settings), model=model)


def packed(model, plugin=wint4_8):
    return pack_model(model, plugin.rules(plugin.Config()))


def shaken(model):
    """With updates that are far from zero."""
    paddle.seed(5)
    for low in adapt.updates(model, adapt.active(model)).values():
        low.B.set_value(low.B + 0.05 * paddle.randn(low.B.shape))
    return model


def learned(model):
    """Logits, and the gradient of every trained parameter."""
    model.train()
    logits = model(paddle.to_tensor(IDS))
    paddle.nn.functional.cross_entropy(logits, paddle.to_tensor(IDS)).backward()
    found = {name: p.grad.numpy() for name, p in model.named_parameters() if not p.stop_gradient}
    return logits.numpy(), found


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda a: a.name)
@pytest.mark.parametrize("plugin", [wint8, wint4, wint4_8, nf4], ids=lambda p: p.name)
def test_adapter_learns_as_beside_the_numbers(adapter, plugin, moe_model, another_moe_model):
    packed(moe_model, plugin)
    targets = dict(another_moe_model.named_parameters())
    for name, weight in packed_weights(moe_model).items():
        targets[name].set_value(weight.dequantize_weight())
    logits, gradients = learned(shaken(adapted(moe_model, adapter)))
    expected_logits, expected = learned(shaken(adapted(another_moe_model, adapter)))
    np.testing.assert_allclose(logits, expected_logits, rtol=1e-3, atol=1e-5)
    assert gradients.keys() == expected.keys()
    assert any(".experts.lora." in name for name in gradients)
    for name, value in expected.items():
        np.testing.assert_allclose(
            gradients[name], value, rtol=2e-3, atol=1e-5 * max(1, np.abs(value).max()), err_msg=name
        )


@pytest.mark.parametrize(
    ("adapter", "settings"),
    [(vera, {"rank": 8, "d_initial": 1.0}), (oft, {"block_size": 8})],
    ids=["vera", "oft"],
)
@pytest.mark.parametrize("plugin", [wint4_8, nf4], ids=lambda p: p.name)
def test_adapters_of_linear_layers_learn_as_beside_the_numbers(adapter, settings, plugin, moe_model, another_moe_model):
    packed(moe_model, plugin)
    targets = dict(another_moe_model.named_parameters())
    for name, weight in packed_weights(moe_model).items():
        targets[name].set_value(weight.dequantize_weight())
    found = []
    for model in (moe_model, another_moe_model):
        made = adapter.ernie_adapt_model(config=adapter.Config(**settings), model=model)
        paddle.seed(5)
        for change in adapt.updates(made, adapt.DEFAULT).values():
            for parameter in change.parameters():
                parameter.set_value(parameter + 0.05 * paddle.randn(parameter.shape))
        found.append(learned(made))
    (logits, gradients), (expected_logits, expected) = found
    np.testing.assert_allclose(logits, expected_logits, rtol=1e-3, atol=1e-5)
    assert gradients.keys() == expected.keys()
    for name, value in expected.items():
        tolerance = 1e-5 * max(1, np.abs(value).max())
        np.testing.assert_allclose(gradients[name], value, rtol=2e-3, atol=tolerance, err_msg=name)
    with pytest.raises(UsageError, match="cannot be put into quantized weights"):
        adapt.wrapped(moe_model)["model.layers.1.self_attn.q_proj"].merge()


def test_only_the_adapter_is_trained(moe_model):
    model = adapted(packed(moe_model))
    assert all(".lora." in name for name, p in model.named_parameters() if not p.stop_gradient)
    assert any("quant_weight" in name for name in model.state_dict())


def test_pissa_starts_unchanged(moe_model):
    ids = paddle.to_tensor(IDS)
    model = packed(moe_model)
    model.eval()
    before = model(ids).numpy()
    np.testing.assert_allclose(adapted(model, init="pissa")(ids).numpy(), before, atol=1e-5)


def test_merging_into_codes_is_refused(moe_model):
    model = adapted(packed(moe_model))
    with pytest.raises(UsageError, match="quantized weights") as caught:
        model.merge()
    assert "ernie merge ADAPTER --base MODEL" in str(caught.value)


def test_taking_the_adapter_off_leaves_the_packed_model(moe_model):
    ids, model = paddle.to_tensor(IDS), packed(moe_model)
    model.eval()
    before = model(ids).numpy()
    model = shaken(adapted(model)).unload()
    np.testing.assert_array_equal(model(ids).numpy(), before)


def test_adapter_is_saved_and_loaded_beside_codes(moe_model, another_moe_model, tmp_path):
    ids, model = paddle.to_tensor(IDS), shaken(adapted(packed(moe_model)))
    save(model, tmp_path)
    again = load(packed(another_moe_model), tmp_path)
    for one in (model, again):
        one.eval()
    np.testing.assert_allclose(again(ids).numpy(), model(ids).numpy(), rtol=1e-4, atol=1e-5)


def test_moving_reference_shares_the_codes(moe_model):
    model = adapted(packed(moe_model))
    reference = make_reference(model, "copy", adapted=True)
    mine, its = (dict(m.named_buffers()) for m in (model, reference))
    name = next(n for n in mine if n.endswith("up_proj.quant_weight"))
    assert its[name] is mine[name]


def test_nothing_as_large_as_a_weight_is_kept_for_the_backward_pass():
    import gc

    from erniecore_weight_only.layers import PackedLinear
    from erniecore_weight_only.schemes import Scheme

    layer = PackedLinear(paddle.nn.Linear(300, 200, bias_attr=False), Scheme("int4"), "layer")
    y = layer(paddle.ones([1, 300], "float32").detach().astype("float32"))
    gc.collect()
    large = [t for t in gc.get_objects() if isinstance(t, paddle.Tensor) and t.size == 60000]
    assert y.shape == [1, 200]
    assert not large


def test_copy_of_a_packed_model_computes_the_same(moe_model):
    ids, model = paddle.to_tensor(IDS), packed(moe_model)
    model.eval()
    np.testing.assert_array_equal(copy.deepcopy(model)(ids).numpy(), model(ids).numpy())
