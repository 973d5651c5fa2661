"""The variance behind each layer is that of what it hands on, in steps that are measured, and nothing stays on the model."""

from types import SimpleNamespace

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_activations.plugin import Activations, ActivationsConfig
from paddle import nn  # noqa: TID253


class Doubling(nn.Layer):
    def forward(self, x):
        return (x * 2.0,)


class Stack(nn.Layer):
    def __init__(self):
        super().__init__()
        self.layers = nn.LayerList([Doubling(), Doubling()])

    def forward(self, x):
        for layer in self.layers:
            (x,) = layer(x)
        return x


@pytest.fixture
def run():
    config = ActivationsConfig(every=2)
    return SimpleNamespace(model=Stack(), is_main=True, settings=SimpleNamespace(callbacks={"activations": config}))


def test_norms_of_gradients_by_layer(run):
    plugin = Activations()
    plugin.ernie_step_start(run=run, step=2)
    run.model(paddle.ones([1, 2, 4]))
    given = {"layers.0.a": [3.0], "layers.0.b": [4.0], "layers.1.a": [2.0], "head": [9.0]}
    plugin.ernie_gradients(run=run, gradients={name: paddle.to_tensor(value) for name, value in given.items()})
    found = plugin.ernie_collect_metrics(run=run)
    assert [found[f"activations/gradient/layers.{layer}"] for layer in (0, 1)] == pytest.approx([5.0, 2.0])


def hooks(model):
    return sum(len(vars(layer)["_forward_post_hooks"]) for layer in model.layers)


def test_means_over_the_passes_of_a_measured_step(run):
    plugin, rng = Activations(), np.random.default_rng(0)
    parts = [rng.normal(size=(2, 3, 4)).astype("float32") for _ in range(2)]
    plugin.ernie_step_start(run=run, step=2)
    for part in parts:
        run.model(paddle.to_tensor(part))
    with paddle.no_grad():
        run.model(paddle.ones([1, 2, 4]) * 99)  # no training pass
    found = plugin.ernie_collect_metrics(run=run)
    expected = np.mean([part.var() for part in parts])
    assert found == pytest.approx(
        {
            "activations/variance/layers.0": 4 * expected,
            "activations/variance/layers.1": 16 * expected,
            "activations/max_variance": 16 * expected,
        },
        rel=1e-5,
    )
    assert hooks(run.model) == 0


def test_other_steps_and_other_ranks_are_not_measured(run):
    plugin = Activations()
    plugin.ernie_step_start(run=run, step=3)
    assert hooks(run.model) == 0
    run.is_main = False
    plugin.ernie_step_start(run=run, step=2)
    assert plugin.ernie_collect_metrics(run=run) == {}


def test_a_run_that_ends_within_a_step_leaves_no_hook(run):
    plugin = Activations()
    plugin.ernie_step_start(run=run, step=1)
    assert hooks(run.model) == 2
    plugin.ernie_run_end(run=run)
    assert hooks(run.model) == 0
