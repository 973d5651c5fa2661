"""PEFT and transformers, where ``$ERNIE_HF_PYTHON`` names an interpreter that has them: logits with an adapter directory that
they load or make."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

MODELS = Path(__file__).parents[2] / "tests" / "fixtures" / "models"

READER = """
import sys, json, numpy as np, peft, torch
from transformers import AutoModelForCausalLM
_, directory, verb, adapter, work, kind, settings = sys.argv
model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
if verb == "load":
    model = peft.PeftModel.from_pretrained(model, adapter)
else:
    torch.manual_seed(3)
    model = peft.get_peft_model(model, getattr(peft, kind)(task_type="CAUSAL_LM", **json.loads(settings)))
    if "init_lora_weights" not in settings:
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(adapter)
with torch.no_grad():
    logits = model.eval()(torch.tensor(np.load(work + "/ids.npy"))).logits
np.save(work + "/logits.npy", logits.float().numpy())
"""


@pytest.fixture
def peft_logits(tmp_path: Path) -> Callable[..., tuple[Any, Any]]:
    """``(model, "load" or "make", directory, config class, **settings)`` -> random ids, and the logits of PEFT on them."""
    ids = np.random.default_rng(0).integers(5, 500, (2, 17))
    np.save(tmp_path / "ids.npy", ids)

    def run(name: str, verb: str, directory: Path, kind: str = "LoraConfig", **config: Any) -> tuple[Any, Any]:
        command = [os.environ["ERNIE_HF_PYTHON"], "-c", READER, MODELS / name, verb, directory, tmp_path, kind]
        words = [*map(str, command), json.dumps(config)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        assert "missing adapter keys" not in done.stderr.lower(), done.stderr
        return ids, np.load(tmp_path / "logits.npy")

    return run


@pytest.fixture
def model(golden: Callable[..., Any], build: Callable[..., Any]) -> Callable[..., Any]:
    """``(name of a fixture, such as "moe", **settings of building)`` -> a model with its weights."""
    from erniecore_ernie45.plugin import plugin as dense
    from erniecore_ernie45_moe.plugin import plugin as moe

    plugins = {"dense": dense, "moe": moe, "moe_mtp": moe}

    def make(name: str = "dense", **settings: Any) -> Any:
        fixture = golden(name)
        return build(plugins[name], fixture.config, fixture.weights, **settings)

    return make
