"""From parts to a peak: what a process will have needed at most. The parts are exact or follow from shapes; two numbers
here are measured, and say so.
"""

from __future__ import annotations

from dataclasses import dataclass

from erniecore.planning.activations import Activations

#: resident memory of a process on the CPU that has imported paddle, made a model of a few kilobytes and trained a step
CPU_CONSTANT = 430 << 20
#: what the C library's heap holds beyond what tensors need at the peak, as a share of what comes and goes
CPU_FRAGMENTATION = 0.12
#: set aside on accelerators for what their allocator cannot use; a habit, not a measurement
RESERVE = 0.06


@dataclass(frozen=True, slots=True)
class States:
    """Exact bytes: ``resident`` stays for the whole run (weights, reference, moments, masters, average); ``gradients``
    of the trained parameters; ``largest`` gradient as float32, of which the update holds a scaled copy."""

    resident: int
    gradients: int
    largest: int


def transient(states: States, acts: Activations, *, accumulation: int) -> int:
    """The most that comes and goes within a step.

    Three moments compete: the loss, with everything kept and no gradient yet (those of earlier micro-batches, where there
    are any); the end of the backward pass, with all gradients and one layer at work; the update.
    """
    earlier = states.gradients if accumulation > 1 else 0
    loss = acts.kept + acts.logits + earlier
    backward = states.gradients + acts.working
    middle = acts.kept + acts.working + earlier
    update = states.gradients + states.largest
    return max(loss, backward, middle, update)


def cpu_peak(states: States, acts: Activations, *, accumulation: int) -> int:
    """Predicted peak resident memory of a training process on the CPU."""
    moving = transient(states, acts, accumulation=accumulation)
    return CPU_CONSTANT + states.resident + round(moving * (1 + CPU_FRAGMENTATION))
