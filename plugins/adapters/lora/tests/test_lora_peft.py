"""With PEFT and transformers themselves: each side loads what the other writes, and the logits are equal."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ernie45.plugin import plugin as dense
from erniecore_ernie45_moe.plugin import plugin as moe
from erniecore_lora import adapt, plugin
from erniecore_lora.build import load
from erniecore_lora.save import save

MODELS = Path(__file__).parents[4] / "tests" / "fixtures" / "models"
PLUGINS = {"dense": dense, "moe": moe}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("ERNIE_HF_PYTHON"), reason="$ERNIE_HF_PYTHON names no interpreter with peft"),
]

READER = """
import sys, json, numpy as np, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
if sys.argv[2] == "load":
    from peft import PeftModel
    model = PeftModel.from_pretrained(model, sys.argv[3])
else:
    from peft import LoraConfig, get_peft_model
    torch.manual_seed(3)
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **json.loads(sys.argv[5])))
    model.save_pretrained(sys.argv[3])
with torch.no_grad():
    logits = model.eval()(torch.tensor(np.load(sys.argv[4] + "/ids.npy"))).logits
np.save(sys.argv[4] + "/logits.npy", logits.float().numpy())
"""


@pytest.fixture
def model(golden, build):
    def make(name):
        fixture = golden(name)
        return build(PLUGINS[name], fixture.config, fixture.weights)

    return make


@pytest.fixture
def theirs(tmp_path):
    """Logits of PEFT on random ids, for an adapter directory that it loads or makes."""
    ids = np.random.default_rng(0).integers(5, 500, (2, 17))
    np.save(tmp_path / "ids.npy", ids)

    def run(name, verb, directory, **config):
        command = [
            os.environ["ERNIE_HF_PYTHON"],
            "-c",
            READER,
            MODELS / name,
            verb,
            directory,
            tmp_path,
            json.dumps(config),
        ]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        assert "missing adapter keys" not in done.stderr.lower(), done.stderr
        return ids, np.load(tmp_path / "logits.npy")

    return run


def ours(model, ids):
    model.eval()
    with paddle.no_grad():
        return model(paddle.to_tensor(ids)).numpy()


def train_a_little(model, seed=1):
    """Random updates that are far from zero."""
    paddle.seed(seed)
    for low in adapt.updates(model, adapt.DEFAULT).values():
        low.B.set_value(paddle.randn(low.B.shape) * 0.05)
        if low.magnitude is not None:
            low.magnitude.set_value(low.magnitude * (1 + 0.1 * paddle.rand(low.magnitude.shape)))


EXPERTS = ("attention", "mlp.experts.*")
WRITTEN = {
    "lora": ("dense", plugin.lora, {"rank": 4}),
    "some layers": ("dense", plugin.lora, {"targets": ("layers.1.self_attn.q_proj", "down_proj")}),
    "rslora": ("dense", plugin.rslora, {"rank": 6, "alpha": 5}),
    "dora": ("dense", plugin.dora, {"rank": 3}),
    "pissa": ("dense", plugin.lora, {"rank": 4, "init": "pissa"}),
    "pissa rslora": ("dense", plugin.rslora, {"rank": 4, "init": "pissa"}),
    "experts": ("moe", plugin.lora, {"rank": 4, "targets": EXPERTS, "dropout": 0.1}),
    "experts rslora": ("moe", plugin.rslora, {"rank": 4, "targets": EXPERTS}),
    "all of a model with experts": ("moe", plugin.lora, {"rank": 4}),
    "all, rslora": ("moe", plugin.rslora, {"rank": 4}),
    "all, pissa": ("moe", plugin.lora, {"rank": 4, "init": "pissa"}),
    "gate of experts": ("moe", plugin.lora, {"rank": 3, "targets": ("mlp.experts.gate_proj",)}),
    "up and down of experts": (
        "moe",
        plugin.lora,
        {"rank": 3, "targets": ("mlp.experts.up_proj", "mlp.experts.down_proj")},
    ),
    "down of experts of a layer": ("moe", plugin.lora, {"rank": 3, "targets": ("layers.1.mlp.experts.down_proj",)}),
    "shared experts": ("moe", plugin.lora, {"rank": 3, "targets": ("*.shared_experts.*", "v_proj")}),
    "a dense layer": ("moe", plugin.lora, {"rank": 3, "targets": ("layers.0.mlp.*",)}),
}


@pytest.mark.parametrize("case", WRITTEN.values(), ids=WRITTEN)
def test_peft_loads_ours(model, theirs, tmp_path, case):
    name, adapter, settings = case
    made = adapter.ernie_adapt_model(config=adapter.Config(**settings), model=model(name))
    train_a_little(made)
    (tmp_path / "adapter").mkdir()
    save(made, tmp_path / "adapter", base=str(MODELS / name))
    ids, logits = theirs(name, "load", tmp_path / "adapter")
    assert np.abs(logits - ours(model(name), ids)).max() > 1e-2
    np.testing.assert_allclose(ours(made, ids), logits, atol=3e-5, rtol=0)


READ = {
    "lora": ("dense", {"r": 4, "lora_alpha": 6, "target_modules": "all-linear"}),
    "patterns": (
        "dense",
        {
            "r": 4,
            "lora_alpha": 6,
            "target_modules": ["q_proj", "down_proj"],
            "rank_pattern": {"q_proj": 2},
            "alpha_pattern": {"layers.0.self_attn.q_proj": 3},
        },
    ),
    "rslora": ("dense", {"r": 5, "lora_alpha": 3, "use_rslora": True, "target_modules": ["v_proj"]}),
    "dora": ("dense", {"r": 4, "lora_alpha": 4, "use_dora": True, "target_modules": ["k_proj", "up_proj"]}),
    "experts": ("moe", {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "gate_proj", "up_proj", "down_proj"]}),
    "experts of one kind": ("moe", {"r": 2, "lora_alpha": 6, "target_modules": ["v_proj", "down_proj"]}),
}


@pytest.mark.parametrize("case", READ.values(), ids=READ)
def test_we_load_what_peft_writes(model, theirs, tmp_path, case):
    name, config = case
    ids, logits = theirs(name, "make", tmp_path / "adapter", **config)
    made = load(model(name), tmp_path / "adapter")
    assert np.abs(logits - ours(model(name), ids)).max() > 1e-2
    np.testing.assert_allclose(ours(made, ids), logits, atol=3e-5, rtol=0)
    made.merge()
    np.testing.assert_allclose(ours(made, ids), logits, atol=3e-5, rtol=0)
