"""What is trained, as a layout sees it: bytes per parameter, tokens of a micro-batch, and the parameters of each part of a
decoder. Pure functions of shapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from erniecore.api.model import DecoderShape, LayerShape
from erniecore.api.optimizer import ParameterRole
from erniecore.api.planning import BYTES, PlannedRun
from erniecore_planner.activations import Work


@dataclass(frozen=True, slots=True, eq=False)  # jobs are keys of caches; comparing every layer would take the time
class Job:
    """A training run, without its layout.

    Attributes:
        shape: of the model. length: of a row. micro: rows of a micro-batch; rows: of a step, over all ranks.
        element: bytes of an activation. weight: bytes of a weight that is at rest; a packed base has less than ``element``.
        gradient, moments, master: bytes per trained parameter; ``table_moments``: of embedding and head, where the optimizer
            keeps another amount for them.
        adapter: parameters of an adapter, which alone are trained; None: everything is. ranks: of its updates, summed.
        copies: frozen copies of the model beside it (0 or 1); forward: reference passes per step (0 or 1).
        loss_chunk: ``train.loss_chunk``.
        generates: text is generated during training, for which stage 3 gathers the parameters.
        patches, tower, joint: see ``Work``. vision: trained parameters of tower and joint.
    """

    shape: DecoderShape
    length: int
    micro: int
    rows: int
    element: int = 2
    weight: float = 2.0
    gradient: float = 2.0
    moments: float = 8.0
    master: float = 4.0
    table_moments: float | None = None
    adapter: int | None = None
    ranks: int = 0
    copies: int = 0
    forward: int = 0
    loss_chunk: int = 1024
    patches: int = 0
    tower: bool = False
    joint: bool = False
    vision: int = 0
    generates: bool = False

    def state(self, parameters: float, tables: float) -> float:
        """Bytes of optimizer state and masters of so many trained parameters, ``tables`` of them of embedding and head."""
        other = self.moments if self.table_moments is None or self.adapter is not None else self.table_moments
        return (self.moments + self.master) * parameters + (other - self.moments) * tables

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch."""
        return self.micro * self.length


def job_of(run: PlannedRun, work: Work, devices: int) -> Job | None:
    """What is trained, per row and parameter; None where the model does not say what its layers are like. A step has as
    many rows as if each of ``devices`` devices had the settings' own."""
    if run.shape is None:
        return None
    plan, train = run.plan, run.train
    trained = plan.parameters.trainable
    base = plan.parameters.total - (trained if plan.parameters.adapted else 0)
    own = trained * BYTES[train.precision] if plan.parameters.adapted else 0
    moments, table_moments = moments_of(run)
    return Job(
        shape=run.shape,
        length=work.length,
        micro=train.batch_size,
        rows=train.batch_size * train.accumulation * devices,
        element=work.element,
        weight=(plan.weights - own) / base,
        gradient=plan.gradients / trained,
        moments=moments,
        master=(plan.master_weights + plan.ema) / trained,
        adapter=trained if plan.parameters.adapted else None,
        ranks=work.ranks,
        table_moments=table_moments,
        copies=1 if plan.reference and not plan.parameters.adapted else 0,
        forward=int(run.reference),
        loss_chunk=train.loss_chunk,
        patches=work.patches,
        tower=work.tower,
        joint=work.joint,
        vision=trained_vision(run),
        generates=run.generates,
    )


def trained_vision(run: PlannedRun) -> int:
    """Parameters of tower and joint that are trained."""
    if run.shape is None or run.shape.vision is None or run.adapter is not None:
        return 0
    names = run.shape.vision.tower, run.shape.vision.joints
    return sum(prod(entry.shape) for entry in run.tensors if entry.trained and entry.name.startswith(names))


def moments_of(run: PlannedRun) -> tuple[float, float | None]:
    """Bytes of optimizer state per trained parameter, without masters, and per parameter of embedding and head; None where
    the run trains none of these or nothing else."""
    total, size = run.plan.parameters.trainable, run.plan.optimizer_state
    tables = [one for one in run.state if one.parameter.role == ParameterRole.EMBEDDING]
    number = sum(prod(one.parameter.shape) for one in tables)
    if not 0 < number < total:
        return size / total, None
    own = sum(one.size.state for one in tables)
    return (size - own) / (total - number), own / number


def attention_parameters(hidden: int, layer: LayerShape) -> int:
    """Projections of queries, keys, values and the output."""
    return 2 * hidden * layer.head_dim * (layer.heads + layer.kv_heads)


def mlp_parameters(hidden: int, layer: LayerShape) -> int:
    """Gate, up and down of the MLP that every token passes."""
    return 3 * hidden * layer.mlp


def expert_parameters(hidden: int, layer: LayerShape) -> int:
    """Of all routed experts."""
    return 3 * hidden * layer.expert * layer.experts


def idle_parameters(hidden: int, layer: LayerShape) -> int:
    """Of routed experts that no token of text takes."""
    return 3 * hidden * layer.idle * layer.experts


def small_parameters(hidden: int, layer: LayerShape) -> int:
    """What every tensor rank has whole: two norms, and the router with its correction per expert."""
    return 2 * hidden + (hidden * layer.experts + layer.experts if layer.experts else 0)


def mtp_parameters(hidden: int) -> int:
    """Beside its layer, a depth of multi-token prediction has two norms and the product that joins two streams."""
    return 2 * hidden + 2 * hidden * hidden


def layer_parameters(hidden: int, layer: LayerShape) -> int:
    """Number of parameters of one layer."""
    return (
        attention_parameters(hidden, layer)
        + mlp_parameters(hidden, layer)
        + expert_parameters(hidden, layer)
        + small_parameters(hidden, layer)
    )


def total_parameters(shape: DecoderShape) -> int:
    """Of a decoder without biases: embedding, layers, last norm, head, and layers of multi-token prediction with theirs."""
    hidden, table = shape.hidden, shape.vocab * shape.hidden
    layers = sum(layer_parameters(hidden, layer) for layer in (*shape.layers, *shape.mtp_layers))
    return table * (1 if shape.tied else 2) + layers + hidden + len(shape.mtp_layers) * mtp_parameters(hidden)


def active_parameters(shape: DecoderShape) -> int:
    """Those that one token passes, without multi-token prediction; an untied embedding and its head both count."""
    hidden, table = shape.hidden, shape.vocab * shape.hidden
    layers = 0.0
    for layer in shape.layers:
        share = layer.selected / layer.experts if layer.experts else 0.0
        layers += layer_parameters(hidden, layer) - expert_parameters(hidden, layer) * (1 - share)
    return table * (1 if shape.tied else 2) + round(layers) + hidden
