"""What a run will be before it starts: parameters, tokens, the exact part of its memory, disk. From names and shapes
alone: no paddle, no weights, no data. Activations are not estimated here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from erniecore.config.core import TrainSection
from erniecore.types import TensorMap
from erniecore.units import size_text

#: bytes per element
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Parameters:
    """Counts of a model, its adapter included. ``active``: those that one token passes through; ``low``: stored in the
    run's precision (the rest stays float32); ``adapted``: the base is frozen, and checkpoints leave it out; ``packed``: stored
    in a quantizer's form, in ``packed_bytes``, and not part of ``low``."""

    total: int
    trainable: int
    active: int
    low: int
    adapted: bool = False
    packed: int = 0
    packed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The facts of ``--dry-run`` and of the box at the start.

    Attributes:
        parameters: see :class:`Parameters`.
        tokens_per_step: upper bound: full rows of ``data.max_seq_len``.
        max_steps: optimizer steps; 0: from the number of samples, known once they are encoded.
        weights, reference, gradients, moments, masters, average: bytes; exact. ``memory`` is their sum, without
            activations, less ``host``: what of them is in the host's memory instead of the device's.
        checkpoint: bytes on disk per checkpoint (tensors; exact but for a few kilobytes of names).
    """

    name: str
    model: str
    method: str
    device: str
    precision: str
    parameters: Parameters
    tokens_per_step: int
    max_steps: int
    weights: int
    reference: int
    gradients: int
    moments: int
    masters: int
    average: int
    memory: int
    checkpoint: int
    keep: int
    host: int = 0

    def as_json(self) -> dict[str, Any]:
        """Plain JSON, nested as declared."""
        return asdict(self)

    def lines(self) -> list[tuple[str, str]]:
        """(label, text) of the box."""
        p = self.parameters
        active = f" / {count(p.active)} active" if p.active != p.total else ""
        parts = [("weights", self.weights), ("reference", self.reference), ("grads", self.gradients)]
        parts += [("moments", self.moments)]
        parts += [("masters", self.masters), ("average", self.average)]
        away = f"; {size_text(self.host)} of them in the host's memory" if self.host else ""
        steps = f"{self.max_steps} steps" if self.max_steps else "steps from epochs"
        return [
            ("model", f"{self.model} {count(p.total)} parameters{active}"),
            ("method", f"{self.method} ({count(p.trainable)} trainable)"),
            ("batch", f"up to {self.tokens_per_step:,} tokens/step, {steps}"),
            (
                "memory",
                " | ".join(f"{n} {size_text(b)}" for n, b in parts if b)
                + f" = {size_text(self.memory)} + activations{away}",
            ),
            ("disk", f"{size_text(self.checkpoint)} per checkpoint, keep {self.keep}"),
        ]


def count_parameters(
    maps: Iterable[TensorMap],
    adapter: Mapping[str, Sequence[int]] | None = None,
    packed: Mapping[str, int] | None = None,
) -> Parameters:
    """Counts from what the state adapter declares of each tensor.

    ``adapter``: name -> shape of what an adapter adds and trains while the base is frozen; None without one. A token
    passes as large a share of an addition as of the layer that it is in. ``packed``: name -> bytes of what a quantizer
    packs.
    """
    packed = packed or {}
    total = trained = low = num_packed = 0
    active, shares = 0.0, {"": 1.0}
    for entry in maps:
        elements = prod(entry.shape)
        total += elements
        trained += elements if entry.trained and entry.name not in packed else 0
        low += 0 if entry.dtype == "float32" or entry.name in packed else elements
        num_packed += elements if entry.name in packed else 0
        active += elements * entry.active_share
        shares[entry.name.rpartition(".")[0]] = entry.active_share
    size = sum(packed.values())
    if adapter is None:
        return Parameters(total, trained, round(active), low, False, num_packed, size)
    added = {name: prod(shape) for name, shape in adapter.items()}
    for name, elements in added.items():
        owner = max((layer for layer in shares if name.startswith(f"{layer}.") or not layer), key=len)
        active += elements * shares[owner]
    trained = sum(added.values())
    return Parameters(total + trained, trained, round(active), low + trained, True, num_packed, size)


def estimate(
    parameters: Parameters,
    settings: Any,
    names: Mapping[str, str],
    *,
    name: str = "",
    data_size: int = 1,
    reference: bool = False,
    moving: bool = False,
) -> Plan:
    """The plan of a run with these settings (``RunSettings``); ``names``: plugin name by kind; ``reference``: the method
    keeps a frozen copy of the model; ``moving``: which follows the policy, so that checkpoints hold it too.

    The optimizer keeps two moments, and a float32 master for every weight of lower precision. A checkpoint holds all
    weights, or under an adapter those that are trained, which are as many bytes as their gradients.
    """
    train: TrainSection = settings.train
    low = parameters.low if train.precision != "float32" else 0
    rest = parameters.total - parameters.packed - low
    weights = low * BYTES[train.precision] + rest * 4 + parameters.packed_bytes
    trained_low = min(low, parameters.trainable)
    gradients = trained_low * BYTES[train.precision] + (parameters.trainable - trained_low) * 4
    moments = 2 * parameters.trainable * BYTES[train.moments]
    masters = 4 * trained_low
    average = 4 * parameters.trainable if train.ema else 0
    copied = (gradients if parameters.adapted else weights) if reference else 0  # an adapter's copy shares the base
    host = moments + masters if train.optimizer_offload else 0
    saved = (gradients if parameters.adapted else weights) + (copied if moving else 0)
    return Plan(
        name=name,
        model=names["model"],
        method=names["method"],
        device=names["device"],
        precision=train.precision,
        parameters=parameters,
        tokens_per_step=train.batch_size * train.accumulation * data_size * settings.data.max_seq_len,
        max_steps=train.max_steps,
        weights=weights,
        reference=copied,
        gradients=gradients,
        moments=moments,
        masters=masters,
        average=average,
        memory=weights + copied + gradients + moments + masters + average - host,
        checkpoint=saved + moments + masters + average,
        keep=settings.checkpoint.keep,
        host=host,
    )


def count(number: int) -> str:
    """``21.8 B``, ``360.7 M``, ``123.5 k``."""
    for limit, unit in ((10**9, " B"), (10**6, " M"), (10**3, " k")):
        if number >= limit:
            return f"{number / limit:.1f}{unit}"
    return str(number)
