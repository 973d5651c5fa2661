"""In which order a stage of a pipeline runs the forward and backward passes of its micro-batches: pure data, no paddle and
no communication. ``simulation.py`` executes the orders of all stages together and says what they cost.

Layers are cut into ``stages x chunks`` parts; part i is chunk i // stages of stage i % stages. With one chunk the order is
1F1B (Narayanan et al., "PipeDream-2BW", 2021, arXiv:2006.09503), with several it is the interleaved one (Narayanan et al.,
"Megatron-LM", 2021, arXiv:2104.04473, section 2.2), which divides the idle time by the number of chunks and needs as many
times the messages. Any number of micro-batches will do.
"""

from __future__ import annotations

from typing import NamedTuple


class Action(NamedTuple):
    """One pass of one micro-batch through one chunk of a stage.

    Attributes:
        forward: else backward. micro: micro-batch, from 0. chunk: of the stage's own, from 0.
    """

    forward: bool
    micro: int
    chunk: int

    def __str__(self) -> str:
        """``F3.1``: forward, micro-batch 3, chunk 1."""
        return f"{'F' if self.forward else 'B'}{self.micro}.{self.chunk}"


def schedule(stage: int, stages: int, chunks: int, micros: int) -> list[Action]:
    """What ``stage`` of ``stages`` does in a step of ``micros`` micro-batches."""
    # an interleaved order needs whole groups of micro-batches; to leave some of them out makes nobody wait for longer
    whole = micros if chunks == 1 else -(-micros // stages) * stages
    forwards = passes(stages, chunks, whole)
    backwards = [(micro, chunks - 1 - chunk) for micro, chunk in forwards]
    warmup = min(warmup_length(stage, stages, chunks), len(forwards))
    order = [Action(True, *which) for which in forwards[:warmup]]
    for forward, backward in zip(forwards[warmup:], backwards, strict=False):
        order += [Action(True, *forward), Action(False, *backward)]
    order += [Action(False, *which) for which in backwards[len(forwards) - warmup :]]
    return [action for action in order if action.micro < micros]


def passes(stages: int, chunks: int, micros: int) -> list[tuple[int, int]]:
    """(micro-batch, chunk) in the order of the forward passes, the same on every stage: as many micro-batches as there
    are stages go through the first chunk, then through the second, and so on."""
    found = []
    for first in range(0, micros, stages):
        group = range(first, min(first + stages, micros))
        found += [(micro, chunk) for chunk in range(chunks) for micro in group]
    return found


def warmup_length(stage: int, stages: int, chunks: int) -> int:
    """Forward passes before the first pair of one forward and one backward pass."""
    later = stages - 1 - stage
    return later if chunks == 1 else 2 * later + (chunks - 1) * stages


def bubble(stages: int, chunks: int, micros: int) -> float:
    """Pipeline bubble: idle fraction of a stage of equal ones, (p - 1) / (v m + p - 1), for m a multiple of p if v > 1."""
    return (stages - 1) / (chunks * micros + stages - 1)


def max_in_flight(stage: int, stages: int, chunks: int, micros: int) -> int:
    """The most micro-batches in flight on a stage; with several chunks and a short last group of micro-batches there may be
    fewer."""
    return min(warmup_length(stage, stages, chunks) + 1, chunks * micros)
