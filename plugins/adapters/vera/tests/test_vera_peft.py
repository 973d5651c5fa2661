"""With PEFT and transformers themselves: each side loads what the other writes, and the logits are equal."""

import os
from pathlib import Path

import numpy as np
import paddle  # noqa: TID253
import pytest
from adapter_checks import logits as ours
from erniecore_lora import adapt
from erniecore_vera.build import load
from erniecore_vera.plugin import plugin
from erniecore_vera.save import save

MODELS = Path(__file__).parents[4] / "tests" / "fixtures" / "models"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("ERNIE_HF_PYTHON"), reason="$ERNIE_HF_PYTHON names no interpreter with peft"),
]


WRITTEN = {
    "all": ("dense", {"rank": 8}),
    "some layers": ("dense", {"rank": 16, "seed": 9, "targets": ("layers.1.self_attn.q_proj", "down_proj")}),
    "attention beside experts": ("moe", {"rank": 8, "targets": ("attention",)}),
    "all that is linear beside experts": ("moe", {"rank": 8}),
}


@pytest.mark.parametrize("projections", [True, False])
@pytest.mark.parametrize("case", WRITTEN.values(), ids=WRITTEN)
def test_peft_loads_ours(model, peft_logits, tmp_path, case, projections):
    name, settings = case
    made = plugin.ernie_adapt_model(config=plugin.Config(**settings), model=model(name))
    paddle.seed(1)
    for vectors in adapt.updates(made, adapt.DEFAULT).values():
        vectors.b.set_value(paddle.randn(vectors.b.shape))
    (tmp_path / "adapter").mkdir()
    save(made, tmp_path / "adapter", base=str(MODELS / name), projections=projections)
    ids, logits = peft_logits(name, "load", tmp_path / "adapter")
    assert np.abs(logits - ours(model(name), ids)).max() > 1e-2
    np.testing.assert_allclose(ours(made, ids), logits, atol=3e-5, rtol=0)


READ = {
    "all": ("dense", {"r": 8, "target_modules": "all-linear"}),
    "of the seed": ("dense", {"r": 5, "target_modules": ["q_proj", "down_proj"], "save_projection": False}),
    "attention beside experts": ("moe", {"r": 8, "projection_prng_key": 3, "target_modules": ["q_proj", "v_proj"]}),
}


@pytest.mark.parametrize("case", READ.values(), ids=READ)
def test_we_load_what_peft_writes(model, peft_logits, tmp_path, case):
    name, config = case
    ids, logits = peft_logits(name, "make", tmp_path / "adapter", "VeraConfig", **config)
    made = load(model(name), tmp_path / "adapter")
    assert np.abs(logits - ours(model(name), ids)).max() > 1e-3
    np.testing.assert_allclose(ours(made, ids), logits, atol=3e-5, rtol=0)
    made.merge()
    np.testing.assert_allclose(ours(made, ids), logits, atol=3e-5, rtol=0)
