"""Whole models with every kernel set (the reference operators, and each library that this processor can run): what the golden
files say of forward passes, losses and gradients, and the same curve over 200 steps of training.
"""

import importlib.util
import math
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import paddle  # noqa: TID253
import pytest
from ernie_third_party_kernels import library
from ernie_third_party_kernels.kernel_set import native
from erniecore_ops.parallel import num_workers

from erniecore import kernels
from erniecore.api import ops

PLUGINS = {name: pytest.importorskip(f"erniecore_{name}.plugin").plugin for name in ("ernie45", "ernie45_moe")}
OF = {"dense": "ernie45", "moe": "ernie45_moe", "moe_mtp": "ernie45_moe"}
SETS = [kernels.REFERENCE, *library.LIBRARIES]
BEST = next(iter(library.usable(library.processor_flags())), "plain")
STEPS = 200


def _shared():
    """Golden files and models filled from them, as the tests of the model plugins have them."""
    path = Path(__file__).parents[2] / "plugins" / "conftest.py"
    spec = importlib.util.spec_from_file_location("plugins_conftest", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SHARED = _shared()
golden = cache(SHARED._golden)


@contextmanager
def running_with(name):
    """All operators of one library, or the references."""
    if name != kernels.REFERENCE and name not in library.usable(library.processor_flags()):
        pytest.skip(f"no library {name} for this processor")
    chosen = kernels.REFERENCES
    if name != kernels.REFERENCE:
        one = SimpleNamespace(load=lambda operator, threads: native.load(operator, threads, name))
        names = {op: name if op in native.operators else kernels.REFERENCE for op in kernels.OPERATORS}
        chosen = kernels.Choice(names, sets={name: one})
    assert kernels.use(chosen, num_workers) == []
    try:
        yield
    finally:
        kernels.use(kernels.REFERENCES, num_workers)


def mean_loss(model, hidden, labels):
    weight, transposed, bias = model.head()
    flat, labels = hidden.reshape([-1, hidden.shape[-1]]), paddle.to_tensor(labels.reshape(-1))
    losses = ops.linear_cross_entropy(flat, weight, labels, transposed=transposed, bias=bias)
    return losses.sum() / int((labels != -100).sum())


def objective(name, model, stored):
    """What was differentiated when the golden files were made."""
    if name != "moe_mtp":
        hidden = model.features(paddle.to_tensor(stored.tensors["a.input_ids"])).hidden
        return mean_loss(model, hidden, stored.tensors["a.labels_shifted"])
    features, labels = model.features(paddle.to_tensor(stored.tensors["input_ids"])), stored.tensors["labels_shifted"]
    ahead = mean_loss(model, features.mtp_hidden[0][:, :20], labels[:, 1:21])
    return mean_loss(model, features.hidden[:, :20], labels[:, :20]) + stored.numbers["mtp_loss_scaling_factor"] * ahead


@pytest.mark.parametrize("name", OF)
@pytest.mark.parametrize("kernel_set", SETS)
def test_golden_files(kernel_set, name):
    stored, plugin = golden(name), PLUGINS[OF[name]]
    model = SHARED._build(plugin, stored.config, stored.weights, **({"mtp": True} if name == "moe_mtp" else {}))
    with running_with(kernel_set):
        for batch, inputs in stored.numbers.get("batches", {}).items():
            given = {key: stored.tensors[f"{batch}.{key}"] for key in inputs}
            model.eval()
            found = model(**{key: paddle.to_tensor(array) for key, array in given.items()}).numpy()
            seen = given.get("attention_mask", np.ones(found.shape[:2]))[..., None]
            np.testing.assert_allclose(
                found * seen, stored.tensors[f"{batch}.logits"], atol=2e-5, rtol=0, err_msg=batch
            )
        model.train()
        objective(name, model, stored).backward()
    found = SHARED._public_gradients(plugin, model)
    assert set(found) == set(stored.numbers["grad_norm"])
    for tensor, norm in stored.numbers["grad_norm"].items():
        assert np.linalg.norm(found[tensor].astype(np.float64)) == pytest.approx(norm, rel=1e-4), tensor


TINY = {
    **dict.fromkeys(("hidden_size", "intermediate_size"), 32),
    **{"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 67},
}
EXPERTS = {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16, "moe_num_shared_experts": 1}


def curve(name):
    """Losses of 200 steps with AdamW and clipping, always from the same weights on the same packed rows."""
    from erniecore.config.adamw import AdamWConfig
    from erniecore.config.core import TrainSection
    from erniecore.engine.optimizers.adamw import AdamW
    from erniecore.engine.optimizers.parameters import gradient_square_sum, trained_parameters
    from erniecore.engine.training import guards

    config = {**golden(name).config, **TINY, **(EXPERTS if name == "moe" else {})}
    if name == "moe":
        config |= {"num_hidden_layers": 2, "moe_layer_start_index": 1, "moe_layer_end_index": 1}
    model = SHARED._build(PLUGINS[OF[name]], config)
    model.train()
    optimizer = AdamW(trained_parameters(model.named_parameters(), TrainSection()), AdamWConfig())
    rng, losses = np.random.default_rng(0), []
    ends = paddle.to_tensor(np.repeat([13, 24], [13, 11]).astype(np.int32).reshape(1, 1, 24, 1))
    for _ in range(STEPS):
        ids = np.cumsum(rng.integers(1, 4, (1, 25)), axis=1) % 67
        hidden = model.features(paddle.to_tensor(ids[:, :-1]), startend_row_indices=ends).hidden
        loss = mean_loss(model, hidden, ids[:, 1:])
        loss.backward()
        optimizer.step(3e-3, guards.clip_scale(math.sqrt(float(gradient_square_sum(optimizer))), 1.0))
        optimizer.clear_gradients()
        losses.append(float(loss))
    return np.array(losses)


@cache
def reference_curve(name):
    with running_with(kernels.REFERENCE):
        return curve(name)


@pytest.mark.parametrize(("kernel_set", "name"), [(BEST, "dense"), *((one, "moe") for one in library.LIBRARIES)])
def test_curves_of_200_steps(kernel_set, name):
    """One of the two layers of the mixture of experts is dense, so every library has both kinds."""
    with running_with(kernel_set):
        found = curve(name)
    expected = reference_curve(name)
    assert expected[-20:].mean() < 0.6 * expected[:5].mean(), "it learns"
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
