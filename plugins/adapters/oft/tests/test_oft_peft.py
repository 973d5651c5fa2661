"""With PEFT and transformers themselves: each side loads what the other writes, and the logits are equal."""

import os
from pathlib import Path

import numpy as np
import paddle  # noqa: TID253
import pytest
from adapter_checks import logits as ours
from erniecore_lora import adapt
from erniecore_oft.build import load
from erniecore_oft.plugin import plugin
from erniecore_oft.save import save

MODELS = Path(__file__).parents[4] / "tests" / "fixtures" / "models"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("ERNIE_HF_PYTHON"), reason="$ERNIE_HF_PYTHON names no interpreter with peft"),
]


WRITTEN = {
    "all": ("dense", {"block_size": 8}),
    "the series": ("dense", {"block_size": 16, "neumann_terms": 5}),
    "four terms of it": (
        "dense",
        {"block_size": 4, "neumann_terms": 4, "targets": ("layers.1.self_attn.q_proj", "down_proj")},
    ),
    "attention beside experts": ("moe", {"block_size": 8, "targets": ("attention",)}),
    "all that is linear beside experts": ("moe", {"block_size": 8}),
}


@pytest.mark.parametrize("case", WRITTEN.values(), ids=WRITTEN)
def test_peft_loads_ours(model, peft_logits, tmp_path, case):
    name, settings = case
    made = plugin.ernie_adapt_model(config=plugin.Config(**settings), model=model(name))
    paddle.seed(1)
    for rotation in adapt.updates(made, adapt.DEFAULT).values():
        rotation.skew.set_value(0.1 * paddle.randn(rotation.skew.shape))
    (tmp_path / "adapter").mkdir()
    save(made, tmp_path / "adapter", base=str(MODELS / name))
    ids, logits = peft_logits(name, "load", tmp_path / "adapter")
    assert np.abs(logits - ours(model(name), ids)).max() > 1e-2
    np.testing.assert_allclose(ours(made, ids), logits, atol=3e-5, rtol=0)


READ = {
    "the series, as is the default": ("dense", {"oft_block_size": 8, "target_modules": "all-linear"}),
    "exact": ("dense", {"oft_block_size": 16, "use_cayley_neumann": False, "target_modules": ["q_proj", "down_proj"]}),
    "by the number of blocks": ("dense", {"r": 4, "oft_block_size": 0, "target_modules": ["q_proj", "down_proj"]}),
    "three terms": ("dense", {"oft_block_size": 8, "num_cayley_neumann_terms": 3, "target_modules": ["v_proj"]}),
    "attention beside experts": ("moe", {"oft_block_size": 8, "target_modules": ["q_proj", "v_proj"]}),
}


@pytest.mark.parametrize("case", READ.values(), ids=READ)
def test_we_load_what_peft_writes(model, peft_logits, tmp_path, case):
    name, config = case
    ids, logits = peft_logits(name, "make", tmp_path / "adapter", "OFTConfig", **config)
    made = load(model(name), tmp_path / "adapter")
    assert np.abs(logits - ours(model(name), ids)).max() > 1e-3
    np.testing.assert_allclose(ours(made, ids), logits, atol=3e-5, rtol=0)
    made.merge()
    np.testing.assert_allclose(ours(made, ids), logits, atol=3e-5, rtol=0)
