"""With transformers itself: it loads what ``ernie export --to hf-fp8`` writes, on a CPU by unpacking, and gives our logits.

Runs where ``ERNIE_HF_PYTHON`` names an interpreter with torch and transformers."""

import os
import subprocess

import numpy as np
import pytest
from erniecore_model_init.new_model import init_model
from erniecore_text.training import train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("ERNIE_HF_PYTHON"), reason="$ERNIE_HF_PYTHON names no interpreter with transformers"
    ),
]
#: sides are multiples of 128, but those of one matrix: it stays as it is
SIZES = {
    "ernie45": "hidden_size=128,intermediate_size=256,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2,"
    "head_dim=64",
    "ernie45-moe": "hidden_size=128,intermediate_size=256,moe_intermediate_size=128,num_hidden_layers=2,"
    "num_attention_heads=2,num_key_value_heads=1",
}
READER = """
import sys, numpy as np, torch
from transformers import AutoModelForCausalLM
model, told = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32, output_loading_info=True)
assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), told
with torch.no_grad():
    logits = model.eval()(torch.tensor(np.load(sys.argv[2] + "/ids.npy"))).logits
np.save(sys.argv[2] + "/logits.npy", logits.float().numpy())
"""


@pytest.mark.parametrize("name", SIZES)
def test_block_fp8_is_loaded_and_gives_our_logits(name, tmp_path):
    import paddle

    import erniecore

    (tmp_path / "tok").mkdir()
    train(["the quick brown fox jumps over the lazy dog"] * 9, 320).save(tmp_path / "tok")
    init_model(name, SIZES[name], tmp_path / "tok", tmp_path / "model", seed_value=3)
    erniecore.export(str(tmp_path / "model"), str(tmp_path / "served"), to="hf-fp8")
    ids = np.random.default_rng(0).integers(5, 290, (2, 17))
    np.save(tmp_path / "ids.npy", ids)
    command = [os.environ["ERNIE_HF_PYTHON"], "-c", READER, str(tmp_path / "served"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    theirs = np.load(tmp_path / "logits.npy")
    with paddle.no_grad():
        ours, plain = (erniecore.load_model(tmp_path / d)(paddle.to_tensor(ids)).numpy() for d in ("served", "model"))
    assert np.abs(ours - plain).max() > 1e-4, "nothing was rounded"
    np.testing.assert_allclose(theirs, ours, atol=3e-5, rtol=0)
