"""With transformers and PEFT themselves: the scores of what we write are ours, with and without an adapter."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_reward.objective import read

from erniecore.api.building import add_score_head
from erniecore.api.run import open_model
from erniecore.api.testing import load
from erniecore.engine.models.adapters import load_adapter
from erniecore.engine.models.model_files import save_model_directory
from erniecore.engine.models.score_head import completed
from erniecore.host import assemble

MODELS = Path(__file__).parents[4] / "tests" / "fixtures" / "models"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("ERNIE_HF_PYTHON"), reason="$ERNIE_HF_PYTHON names no interpreter with transformers"
    ),
]

#: transformers has the parts of such a class and no class of that name for these models: a user writes two lines
READER = """
import sys, numpy as np, torch
from transformers import AutoConfig
from transformers.modeling_layers import GenericForSequenceClassification
from transformers.models.ernie4_5 import Ernie4_5PreTrainedModel
from transformers.models.ernie4_5_moe import Ernie4_5_MoePreTrainedModel
class Ernie4_5ForSequenceClassification(GenericForSequenceClassification, Ernie4_5PreTrainedModel): pass
class Ernie4_5_MoeForSequenceClassification(GenericForSequenceClassification, Ernie4_5_MoePreTrainedModel): pass
kinds = {c.__name__: c for c in (Ernie4_5ForSequenceClassification, Ernie4_5_MoeForSequenceClassification)}
directory, adapter, verb, work = sys.argv[1:5]
config = AutoConfig.from_pretrained(directory, num_labels=1)
name = (config.architectures or [""])[0].replace("ForCausalLM", "ForSequenceClassification")
torch.manual_seed(5)
model, info = kinds[name].from_pretrained(
    directory, config=config, dtype=torch.float32, output_loading_info=True)
if verb == "plain":
    assert not info["missing_keys"] and not info["mismatched_keys"], info
    assert all("lm_head" in key for key in info["unexpected_keys"]), info
if verb == "load":
    from peft import PeftModel
    model = PeftModel.from_pretrained(model, adapter)
if verb == "make":
    from peft import LoraConfig, get_peft_model
    wanted = LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=6, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = get_peft_model(model, wanted)
    model.save_pretrained(adapter)
with torch.no_grad():
    scores = model.eval()(torch.tensor(np.load(work + "/ids.npy"))).logits
np.save(work + "/scores.npy", scores.float().numpy())
"""


@pytest.fixture(params=["dense", "moe"])
def name(request):
    return request.param


@pytest.fixture
def theirs(tmp_path):
    """Scores of transformers for padded rows of ids."""
    ids = np.random.default_rng(0).integers(5, 500, (3, 17))
    ids[1, 9:] = 0  # padding: they read the last id that is not
    np.save(tmp_path / "ids.npy", ids)

    def run(directory, verb="plain", adapter=""):
        command = [os.environ["ERNIE_HF_PYTHON"], "-c", READER, directory, adapter, verb, tmp_path]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        assert "missing adapter keys" not in done.stderr.lower(), done.stderr
        return ids, np.load(tmp_path / "scores.npy")[:, 0]

    return run


def ours(model, ids):
    model.eval()
    with paddle.no_grad():
        hidden = model.features(paddle.to_tensor(ids)).hidden
        lasts = [[row, int(np.flatnonzero(line)[-1])] for row, line in enumerate(ids)]
        return read(model, hidden.gather_nd(paddle.to_tensor(lasts))).numpy()


def opened(name):
    """A golden model with a head, as a bundle."""
    paddle.seed(3)
    bundle = open_model(MODELS / name)
    add_score_head(bundle.model)
    return completed(bundle)


def test_transformers_scores_as_we_do(theirs, name, tmp_path):
    bundle = opened(name)
    save_model_directory(bundle, tmp_path / "model")
    ids, scores = theirs(tmp_path / "model")
    assert np.ptp(scores) > 1e-2
    np.testing.assert_allclose(ours(bundle.model, ids), scores, atol=3e-5, rtol=0)
    np.testing.assert_allclose(ours(open_model(tmp_path / "model").model, ids), scores, atol=3e-5, rtol=0)


def test_peft_loads_our_adapter_with_its_head(theirs, name, tmp_path):
    adapter, model = load("adapter", "lora"), open_model(MODELS / name).model
    host, config = assemble({"adapter": adapter}), adapter.Config(rank=4, targets=("attention",))
    model = host.call(adapter, "ernie_adapt_model", config=config, model=model)
    paddle.seed(4)
    for key, parameter in model.named_parameters():
        if key.endswith(".B"):
            parameter.set_value(paddle.randn(parameter.shape) * 0.05)
    add_score_head(model)
    (tmp_path / "adapter").mkdir()
    host.call(adapter, "ernie_save_adapter", config=config, model=model, target=tmp_path / "adapter", base="")
    ids, scores = theirs(MODELS / name, "load", tmp_path / "adapter")
    np.testing.assert_allclose(ours(model, ids), scores, atol=3e-5, rtol=0)


def test_we_load_the_adapter_and_head_of_peft(theirs, name, tmp_path):
    ids, scores = theirs(MODELS / name, "make", tmp_path / "adapter")
    asked = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert asked["task_type"] == "SEQ_CLS"
    model = load_adapter(open_model(MODELS / name).model, tmp_path / "adapter")
    np.testing.assert_allclose(ours(model, ids), scores, atol=3e-5, rtol=0)
