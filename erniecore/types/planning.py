"""What is known of a run before anything is built: the plan that the core prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from erniecore_system.units import count_text, counted, seconds_text, size_text

from erniecore.types.optimizer import ParameterSpec, StateBytes

#: bytes per element
BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Parameters:
    """Counts of a model, its adapter included.

    Attributes:
        active: those that one token passes through. low: stored in the run's precision; the rest stays float32.
        adapted: the base is frozen, and checkpoints leave it out.
        packed: stored by a quantizer, in ``packed_bytes``, and not part of ``low``.
    """

    total: int
    trainable: int
    active: int
    low: int
    adapted: bool = False
    packed: int = 0
    packed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a forecaster expects of this rank; None where it cannot say.

    Attributes:
        peak_memory: most bytes that tensors hold at a time. step_seconds: of one optimizer step of full rows.
    """

    peak_memory: int | None = None
    step_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The facts of ``--dry-run`` and of the box at the start.

    Attributes:
        parameters: see :class:`Parameters`.
        tokens_per_step: upper bound: full rows of ``data.max_seq_len``.
        max_steps: optimizer steps; 0: from the number of samples, known once they are encoded.
        weights, reference, gradients, optimizer_state, master_weights, ema: bytes; exact. ``master_weights``: float32 copies
            of what is trained in low precision. ``memory`` is their sum, without activations, less ``host_memory``: what of
            them is in the host's memory instead of the device's.
        checkpoint: bytes on disk per checkpoint (tensors; exact but for a few kilobytes of names).
        forecast: of an installed forecaster; None without one.
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
    optimizer_state: int
    master_weights: int
    ema: int
    memory: int
    checkpoint: int
    keep: int
    host_memory: int = 0
    forecast: Forecast | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain JSON, nested as declared."""
        return asdict(self)

    def lines(self) -> list[tuple[str, str]]:
        """(label, text) of the box."""
        p = self.parameters
        active = f", {count_text(p.active)} active" if p.active != p.total else ""
        parts = {
            "weights": self.weights,
            "reference": self.reference,
            "gradients": self.gradients,
            "optimizer state": self.optimizer_state,
            "master weights": self.master_weights,
            "EMA": self.ema,
        }
        states = " | ".join(f"{name} {size_text(size)}" for name, size in parts.items() if size)
        away = f"; {size_text(self.host_memory)} of them in host memory" if self.host_memory else ""
        steps = counted(self.max_steps, "step") if self.max_steps else "steps from epochs"
        return [
            ("model", f"{self.model}, {count_text(p.total)} parameters{active}"),
            ("method", f"{self.method}, {count_text(p.trainable)} trainable"),
            ("batch", f"up to {counted(self.tokens_per_step, 'token', ',')} per step, {steps}"),
            ("memory", f"{states} = {size_text(self.memory)} + activations{away}"),
            *self._forecast(),
            ("disk", f"{size_text(self.checkpoint)} per checkpoint, keep {self.keep}"),
        ]

    def _forecast(self) -> list[tuple[str, str]]:
        """One line, where a forecaster said something."""
        found = self.forecast or Forecast()
        peak = [f"peak {size_text(found.peak_memory)} with activations"] if found.peak_memory else []
        time = [f"about {seconds_text(found.step_seconds)} per step"] if found.step_seconds else []
        return [("forecast", ", ".join([*peak, *time]))] if peak or time else []


class OptimizerState(NamedTuple):
    """A trainable parameter, and what the optimizer keeps for it, all ranks together."""

    parameter: ParameterSpec
    size: StateBytes
