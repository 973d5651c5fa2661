"""Trains a factor per output of the attention's query projections; everything else is frozen."""

from typing import Any

from erniecore.api import hookimpl
from erniecore.api.adapter import AdapterPlugin


class ScaledQueries(AdapterPlugin):
    """The queries of every layer, scaled."""

    name, summary = "scaled-queries", "a trained factor per query output"

    @hookimpl
    def ernie_adapt_model(self, model: Any) -> Any:
        from paddle import nn

        from erniecore.api.layers import derived, replaced

        class Scaled:
            def forward(self: Any, x: Any) -> Any:
                return super().forward(x) * self.factor  # type: ignore[misc]

        for parameter in model.parameters():
            parameter.stop_gradient = True
        for name, layer in list(model.named_sublayers()):
            if name.endswith("q_proj"):
                one = nn.initializer.Constant(1.0)
                factor = layer.create_parameter([layer.weight.shape[1]], default_initializer=one)
                model = replaced(model, name, derived(layer, Scaled, factor=factor))
        return model


plugin = ScaledQueries()
