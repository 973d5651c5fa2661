"""Against PEFT: logits with an adapter, merged weights and gradients of stored runs (see the READMEs beside them)."""

import json
from pathlib import Path

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ernie45.plugin import plugin
from erniecore_ernie45_moe.plugin import plugin as moe_plugin
from erniecore_lora import adapt
from erniecore_lora.build import load
from erniecore_lora.save import save
from safetensors.numpy import load_file

FIXTURES = Path(__file__).parents[4] / "tests" / "fixtures" / "lora"


class Golden:
    def __init__(self, name, golden, build):
        dense = golden("dense")
        self.directory = FIXTURES / name
        self.tensors = load_file(self.directory / "golden.safetensors")
        self.numbers = json.loads((self.directory / "golden.json").read_text())
        self.model = build(plugin, dense.config, dense.weights)
        self.model = load(self.model, self.directory)
        self.model.eval()

    def logits(self):
        with paddle.no_grad():
            return self.model(paddle.to_tensor(self.tensors["input_ids"].astype(np.int64))).numpy()


@pytest.fixture(params=["lora", "rslora"])
def stored(request, golden, build):
    return Golden(request.param, golden, build)


def test_logits_beside_the_weights(stored):
    np.testing.assert_allclose(stored.logits(), stored.tensors["adapter_logits"], atol=2e-5, rtol=0)


def test_logits_without_the_adapter(stored):
    with stored.model.adapter_off():
        np.testing.assert_allclose(stored.logits(), stored.tensors["base_logits"], atol=2e-5, rtol=0)
    np.testing.assert_allclose(stored.logits(), stored.tensors["adapter_logits"], atol=2e-5, rtol=0)


def test_merged_weights_and_logits(stored):
    stored.model.merge()
    np.testing.assert_allclose(stored.logits(), stored.tensors["merged_logits"], atol=2e-5, rtol=0)
    state = dict(stored.model.state_dict())
    merged = {n.removeprefix("merged."): a for n, a in stored.tensors.items() if n.startswith("merged.")}
    assert merged
    for name, array in merged.items():
        np.testing.assert_allclose(state[name].numpy().T, array, atol=1e-6, err_msg=name)


def test_gradients(stored):
    updates = adapt.updates(stored.model, adapt.DEFAULT)
    for low in updates.values():
        low.A.stop_gradient = low.B.stop_gradient = False
    ids, labels = (paddle.to_tensor(stored.tensors[n].astype(np.int64)) for n in ("input_ids", "labels"))
    logits, labels = stored.model(ids)[:, :-1], labels[:, 1:]
    loss = paddle.nn.functional.cross_entropy(logits[labels != -100], labels[labels != -100])
    loss.backward()
    assert float(loss) == pytest.approx(stored.numbers["loss_with_adapter"], rel=1e-5)
    for target, low in updates.items():
        for side, parameter in (("A", low.A), ("B", low.B)):
            expected = stored.numbers["grad_norm"][f"{target.layer}.lora_{side}.weight"]
            assert float(parameter.grad.norm()) == pytest.approx(expected, rel=1e-4), target


# ---- routed experts


@pytest.fixture
def experts(golden, build):
    """The model with routed experts, its adapter loaded from the golden directory, and PEFT's numbers."""
    moe = golden("moe")
    model = load(build(moe_plugin, moe.config, moe.weights), FIXTURES / "moe")
    model.eval()
    return model, load_file(FIXTURES / "moe" / "golden.safetensors")


def logits_of(model, stored):
    with paddle.no_grad():
        return model(paddle.to_tensor(stored["input_ids"].astype(np.int64))).numpy()


def test_logits_with_updates_of_experts_are_those_of_peft(experts):
    model, stored = experts
    assert np.abs(stored["adapter_logits"] - stored["base_logits"]).max() > 1
    np.testing.assert_allclose(logits_of(model, stored), stored["adapter_logits"], atol=3e-5, rtol=0)
    with model.adapter_off():
        np.testing.assert_allclose(logits_of(model, stored), stored["base_logits"], atol=3e-5, rtol=0)
    model.merge()
    np.testing.assert_allclose(logits_of(model, stored), stored["merged_logits"], atol=3e-5, rtol=0)


def test_what_peft_read_is_written_again(experts, tmp_path):
    """The files that the numbers are of are those that :func:`save` makes today."""
    save(experts[0], tmp_path)
    configs = [json.loads((place / "adapter_config.json").read_text()) for place in (tmp_path, FIXTURES / "moe")]
    assert configs[0] == configs[1]
    made, wanted = (load_file(place / "adapter_model.safetensors") for place in (tmp_path, FIXTURES / "moe"))
    assert made.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(made[name], array, err_msg=name)
