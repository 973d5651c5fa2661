"""Greedy generation equals what the reference implementation made with the same weights, cached and not."""

import importlib
import json
from pathlib import Path

import numpy as np
import pluggy
import pytest
from erniecore_generation.generate import Decoder, evaluating, generate
from erniecore_generation.sampling import Sampling
from safetensors.numpy import load_file

from erniecore.engine.models.weights import load_weights
from erniecore.hookspecs.model import ModelHooks

FIXTURES = Path(__file__).parents[4] / "tests" / "fixtures" / "models"
PLUGINS = {
    "dense": "erniecore_ernie45.plugin",
    "moe": "erniecore_ernie45_moe.plugin",
    "moe_mtp": "erniecore_ernie45_moe.plugin",
}


def load(name):
    """(model, goldens) of a fixture directory."""
    directory = FIXTURES / name
    plugin = importlib.import_module(PLUGINS[name]).plugin
    architecture = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    manager = pluggy.PluginManager("erniecore")
    manager.add_hookspecs(ModelHooks)
    manager.register(plugin)
    given = {"config": plugin.Config(path=str(directory)), "architecture": architecture}
    model = manager.hook.ernie_build_model(**given, dtype="float32")
    load_weights(model, directory, manager.hook.ernie_state_adapter(architecture=architecture))
    return model, load_file(directory / "golden.safetensors")


@pytest.fixture(scope="module", params=["dense", "moe"])
def case(request):
    return load(request.param)


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("name", ["gen", "gen1"])
def test_tokens_equal_the_reference(case, name, use_cache):
    model, golden = case
    got = generate(
        model,
        golden[f"{name}.input_ids"],
        attention_mask=golden.get(f"{name}.attention_mask"),
        max_new_tokens=16,
        eos=(),
        use_cache=use_cache,
    )
    np.testing.assert_array_equal(got.numpy(), golden[f"{name}.new_tokens"])


def test_a_padded_row_equals_the_row_alone(case):
    model, golden = case
    ids, mask = golden["gen.input_ids"], golden["gen.attention_mask"]
    alone = generate(model, ids[1:, mask[1] == 1], max_new_tokens=16, eos=())
    np.testing.assert_array_equal(alone.numpy()[0], golden["gen.new_tokens"][1])


@pytest.mark.parametrize("name", ["gen", "gen1"])
def test_logits_of_cached_steps_equal_the_reference(case, name):
    model, golden = case
    with evaluating(model):
        mask = golden.get(f"{name}.attention_mask")
        decoder = Decoder(model, golden[f"{name}.input_ids"], mask, sampling=Sampling(), max_new_tokens=16)
        steps = []
        next_logits = decoder._next_logits
        decoder._next_logits = lambda: steps.append(next_logits()) or steps[-1]
        for _ in range(16):
            decoder.step()
    np.testing.assert_allclose(np.stack(steps, axis=1), golden[f"{name}.logits"], atol=1e-4)


def test_layers_that_predict_ahead_do_not_disturb_the_cache():
    model, golden = load("moe_mtp")
    ids = golden["input_ids"][:, :7]
    results = [generate(model, ids, max_new_tokens=12, eos=(), use_cache=use).numpy() for use in (True, False)]
    np.testing.assert_array_equal(*results)
