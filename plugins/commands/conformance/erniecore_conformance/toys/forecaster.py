"""A good forecaster, and the run that forecasters are asked about: the toy model on one process, not built."""

from __future__ import annotations

from math import prod
from typing import Any

from erniecore.api import Plugin, hookimpl
from erniecore.api.device import Cluster
from erniecore.api.model import DecoderShape, LayerShape
from erniecore.api.optimizer import AdamWConfig
from erniecore.api.planning import REFERENCE, Forecast, ParallelLayout, Parameters, Plan, PlannedRun
from erniecore.api.testing import CORE_SECTIONS, OPERATORS
from erniecore_conformance.toys.architecture import TOY_ARCHITECTURE
from erniecore_conformance.toys.model import ToyStateAdapter
from erniecore_conformance.toys.others import ToyDevice


def toy_run(batch_size: int = 2, **changes: Any) -> PlannedRun:
    """A run in float32 with AdamW; ``changes`` replace fields."""
    architecture, tensors = TOY_ARCHITECTURE, ToyStateAdapter(TOY_ARCHITECTURE).maps("pt")
    count = sum(prod(entry.shape) for entry in tensors)
    heads, hidden = int(architecture["num_attention_heads"]), int(architecture["hidden_size"])
    layer = LayerShape(heads, heads, hidden // heads, int(architecture["intermediate_size"]))
    layers = (layer,) * int(architecture["num_hidden_layers"])
    train = CORE_SECTIONS["train"].model_validate({"batch_size": batch_size, "precision": "float32"})
    data = CORE_SECTIONS["data"].model_validate({"max_seq_len": 128})
    known: dict[str, Any] = {
        "names": {"model": "toy", "method": "toy", "device": "toy", "parallel": "single"},
        "train": train,
        "optimizer": AdamWConfig(),
        "data": data,
        "device": ToyDevice(),
        "cluster": Cluster(),
        "plan": _plan(count, batch_size * 128),
        "shape": DecoderShape(hidden, int(architecture["vocab_size"]), tied=False, layers=layers),
        "layout": ParallelLayout(),
        "layouts": None,
        "tensors": tensors,
        "adapter": None,
        "state": (),
        "kernels": dict.fromkeys(OPERATORS, REFERENCE),
    }
    return PlannedRun(**{**known, **changes})


def _plan(count: int, tokens: int) -> Plan:
    """Weights, gradients and two moments of ``count`` parameters."""
    size = 4 * count
    return Plan(
        name="toy", model="toy", method="toy", device="toy", precision="float32",
        parameters=Parameters(count, count, count, 0), tokens_per_step=tokens, max_steps=3,
        weights=size, reference=0, gradients=size, optimizer_state=2 * size, master_weights=0, ema=0, memory=4 * size,
        checkpoint=3 * size, keep=2,
    )  # fmt: skip


class ToyForecasterPlugin(Plugin):
    """The exact states, and some bytes for each token of a micro-batch."""

    kind = "forecaster"
    name = "toy"
    summary = "a forecaster for the conformance kit"

    @hookimpl
    def ernie_forecast(self, run: PlannedRun) -> Forecast | None:
        if run.shape is None:
            return None
        activations = 64 * run.shape.hidden * len(run.shape.layers) * run.train.batch_size * run.data.max_seq_len
        return Forecast(peak_memory=run.plan.memory + activations)


plugin = ToyForecasterPlugin()
