"""The callback clips and reports gates, and says nothing of models without."""

from types import SimpleNamespace

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_conformance import parametrize_checks
from erniecore_ernie45.residual import GatedResidual, Residual
from erniecore_gpas.plugin import GatesConfig, plugin
from paddle import nn  # noqa: TID253


@parametrize_checks("callback", "gpas")
def test_conformance(check):
    check()


class Stack(nn.Layer):
    def __init__(self, residuals):
        super().__init__()
        self.layers = nn.LayerList([nn.LayerDict({"residual": residual}) for residual in residuals])


def run(model, clip=0.0, is_main=True):
    callbacks = {"gpas": GatesConfig(gradient_clip=clip)}
    return SimpleNamespace(model=model, is_main=is_main, settings=SimpleNamespace(callbacks=callbacks))


def test_factors_of_the_gates_are_metrics_of_the_main_rank():
    gated = Stack([GatedResidual(straight_through=True), GatedResidual(straight_through=True)])
    for layer, value in zip(gated.layers, (0.5, -0.2), strict=True):
        layer["residual"].gate.set_value(paddle.to_tensor([value]))
    factors = [1 - x / (1 + np.exp(-x)) for x in (0.5, -0.2)]
    found = plugin.ernie_collect_metrics(run=run(gated))
    assert found == pytest.approx({"gpas/min_scale": min(factors), "gpas/mean_scale": np.mean(factors)}, rel=1e-6)
    assert plugin.ernie_collect_metrics(run=run(gated, is_main=False)) == {}
    assert plugin.ernie_collect_metrics(run=run(Stack([Residual()]))) == {}


def test_gradients_of_gates_are_clipped_where_the_settings_say_so():
    for clip, expected in ((0.0, -3.0), (0.5, -0.5)):
        given = {"layers.0.residual.gate": paddle.to_tensor([-3.0]), "layers.0.norm.weight": paddle.to_tensor([-3.0])}
        plugin.ernie_gradients(run=run(None, clip), gradients=given)
        assert [value.item() for value in given.values()] == [expected, -3.0]
