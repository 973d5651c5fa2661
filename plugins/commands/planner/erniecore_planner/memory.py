"""From parts to a peak: the most that tensors, and on the CPU a process, will have held. The parts are exact or follow from
shapes; three numbers here are measured, and say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from erniecore_planner.activations import Activations

#: resident memory of a process that has imported paddle and the engine and has data and small blocks, but no tensors; and what
#: glibc's heap grows to over the first dozen steps, as a multiple of the tensors that come and go in a step: aligned blocks
#: leave holes. Gradients take the place of what has gone, and need no more than their bytes. Both fitted to
#: ``benchmarks.plan_memory`` (Linux, paddle 3.3.1, glibc 2.36, kernels installed).
CPU_PROCESS = 400 << 20
CPU_HEAP = 1.33
#: what MKL keeps per thread to pack the matrices of large products: a run at 0.3B with a vocabulary of 103,424 words has 152 MiB
#: less on two threads with MKL_DISABLE_FAST_MM=1, which frees them after each product
BLAS_BUFFER = 75 << 20


@dataclass(frozen=True, slots=True)
class States:
    """Exact bytes: ``resident`` stays for the whole run (weights, reference, moments, masters, average); ``gradients``
    of the trained parameters, ``after`` of them of what comes after the vision tower; ``largest`` gradient as float32, of which
    the update holds a scaled copy."""

    resident: int
    gradients: int
    largest: int
    after: int = 0


class Moment(NamedTuple):
    """Bytes within a step: ``gradients`` of parameters, which stay to its end, and what else comes and goes."""

    gradients: int
    other: int


def moments(states: States, acts: Activations, *, accumulation: int) -> list[Moment]:
    """The moments that compete for the most that comes and goes within a step.

    They are the vision tower before the decoder; the loss, with everything kept and no gradient yet (those of earlier
    micro-batches, where there are any); the beginning of the backward pass, with one layer at work; that of the tower,
    with the gradients of all that comes after it; the end, with all gradients; the update.
    """
    earlier = states.gradients if accumulation > 1 else 0
    tower = (
        Moment(max(states.after, earlier), acts.vision + acts.seeing) if acts.vision else Moment(earlier, acts.seeing)
    )
    passes = [
        tower,
        Moment(earlier, acts.saved + acts.logits),
        Moment(states.gradients, acts.workspace),
        Moment(earlier, acts.saved - acts.loss + acts.workspace),
        Moment(states.gradients + states.largest, 0),
    ]
    return [moment._replace(other=moment.other + acts.masks) for moment in passes]


def transient(states: States, acts: Activations, *, accumulation: int) -> int:
    """The most that comes and goes within a step."""
    return max(map(sum, moments(states, acts, accumulation=accumulation)))


def tensors_peak(states: States, acts: Activations, *, accumulation: int) -> int:
    """Most bytes that tensors hold at a time: what the allocator of any device counts."""
    return states.resident + transient(states, acts, accumulation=accumulation)


def cpu_process(
    states: States, acts: Activations, *, accumulation: int, threads: int = 1, largest_matrix: int = 0
) -> int:
    """Rough peak of the resident memory of a training process on the CPU; see ``CPU_HEAP`` for how rough.

    Args:
        largest_matrix: its bytes in float32; buffers of products are no larger.
    """
    buffers = min(threads * BLAS_BUFFER, largest_matrix)
    heap = max(
        moment.gradients + round(CPU_HEAP * moment.other) for moment in moments(states, acts, accumulation=accumulation)
    )
    return CPU_PROCESS + states.resident + buffers + heap
