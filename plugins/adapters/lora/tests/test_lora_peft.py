"""With PEFT and transformers themselves: each side loads what the other writes, and the logits are equal."""

import os
from pathlib import Path

import numpy as np
import paddle  # noqa: TID253
import pytest
from adapter_checks import logits as ours
from erniecore_lora import adapt, plugin
from erniecore_lora.build import load
from erniecore_lora.save import save

MODELS = Path(__file__).parents[4] / "tests" / "fixtures" / "models"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("ERNIE_HF_PYTHON"), reason="$ERNIE_HF_PYTHON names no interpreter with peft"),
]


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
def test_peft_loads_ours(model, peft_logits, tmp_path, case):
    name, adapter, settings = case
    made = adapter.ernie_adapt_model(config=adapter.Config(**settings), model=model(name))
    train_a_little(made)
    (tmp_path / "adapter").mkdir()
    save(made, tmp_path / "adapter", base=str(MODELS / name))
    ids, logits = peft_logits(name, "load", tmp_path / "adapter")
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
def test_we_load_what_peft_writes(model, peft_logits, tmp_path, case):
    name, config = case
    ids, logits = peft_logits(name, "make", tmp_path / "adapter", init_lora_weights=False, **config)
    made = load(model(name), tmp_path / "adapter")
    assert np.abs(logits - ours(model(name), ids)).max() > 1e-2
    np.testing.assert_allclose(ours(made, ids), logits, atol=3e-5, rtol=0)
    made.merge()
    np.testing.assert_allclose(ours(made, ids), logits, atol=3e-5, rtol=0)
