"""An engine that hands prompts over: one engine computes the prompt and the first token, another one decodes the rest, and
the completion has the same bits as if one had done both. How keys and values travel is the business of the sink.

The engine that computes the prompt gets a request with a ``sink``, which is called in the engine's thread after every chunk
and once more when the first token is there. The engine that decodes gets the same request with an ``adopted`` row, without
images. Both have the same model, adapters, drafter and settings; a drafter's layers are handed over like the model's.

Letters: n columns of a chunk.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from erniecore.api import ops
from erniecore_generation.engine.engine import Engine
from erniecore_generation.engine.requests import GenerationRequest
from erniecore_generation.engine.scheduler import Job, Lane, Scheduler
from erniecore_generation.stepper import Group, Row

#: what one layer stores for some columns of a row: each array [1, n, ...]; bfloat16 as its bits, in uint16
LayerArrays: TypeAlias = Sequence[NDArray[Any]]


@dataclass(frozen=True, slots=True)
class RowState:
    """What a row is after its prompt, besides the request, keys and values.

    Attributes:
        next_ids: the first token of the completion, then draft tokens.
        cached_tokens: tokens of the prompt that were in the prefix cache. draft_tokens: proposed so far.
        queue_s, prefill_s: seconds before the first pass, and from there to the first token.
        shift: what images of the prompt add to the number of a token behind it for its position.
    """

    next_ids: tuple[int, ...]
    cached_tokens: int
    draft_tokens: int
    queue_s: float
    prefill_s: float
    shift: int = 0


class KvSink(Protocol):
    """Takes the keys and values of a prompt. What it raises fails the request."""

    def columns(self, start: int, layers: Sequence[LayerArrays]) -> None:
        """Columns from ``start`` on of every layer; chunk by chunk, in order. The arrays are copies."""
        ...

    def handed(self, state: RowState) -> None:
        """All columns have come; the engine forgets the request, and tells its listener nothing more."""
        ...


@dataclass(frozen=True, slots=True)
class Adopted:
    """A row whose prompt another engine has computed: per layer the arrays of all its columns."""

    state: RowState
    layers: Sequence[LayerArrays]


@dataclass(frozen=True, slots=True)
class HandoffRequest(GenerationRequest):
    """A request of which this engine does one part.

    Attributes:
        sink: takes the prompt, unless the first token ends the completion: then ``Finished`` follows as ever.
        adopted: the row that is decoded here; listeners hear of the tokens behind the first one.
    """

    sink: KvSink | None = None
    adopted: Adopted | None = None


class HandoffScheduler(Scheduler):
    """The scheduler of an engine that may do one part of a request."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        #: columns that a sink has, by the number of the request
        self._sent: dict[int, int] = {}

    def admit(self, job: Job) -> None:
        """Give a request a row, which may be further than its prompt."""
        adopted = job.request.adopted if isinstance(job.request, HandoffRequest) else None
        if adopted is None:
            super().admit(job)
            return
        self.jobs[job.number] = job
        try:
            self._adopt(job, adopted)
        except Exception as error:
            self.fail(job, error)

    def _adopt(self, job: Job, adopted: Adopted) -> None:
        request, state, lane = job.request, adopted.state, self.lanes[job.adapter]
        row = Row(
            list(request.ids), request.sampling, request.max_new_tokens, request.stop_ids, request.stream, job.number,
            least=request.min_new_tokens, constraint=request.constraint, shift=state.shift,
        )  # fmt: skip
        job.row, job.started, job.cached = row, time.perf_counter(), state.cached_tokens
        # as much room as where the prompt was computed: shapes may decide about the last bits
        group = lane.stepper.group([row], len(row.ids) + lane.stepper.room([row]))
        group.cache.fill([[ops.tensor_of(array) for layer in adopted.layers for array in layer]])
        group.mask = np.ones((1, len(row.ids)), np.int64)
        row.take(state.next_ids[0])
        row.next_ids = list(state.next_ids)
        job.first = job.started
        self._join(lane, group)

    def _prefill(self, job: Job) -> None:
        super()._prefill(job)
        sink = _sink(job)
        if sink is None or job.ended or job.group is None:
            return
        try:
            self._send(job, sink, job.group)
        except Exception as error:
            self.fail(job, error)

    def _join(self, lane: Lane, group: Group) -> None:
        job = self.jobs[group.rows[0].index]
        sink = _sink(job)
        if sink is None:
            super()._join(lane, group)
            return
        row = group.rows[0]
        try:
            self._send(job, sink, group)
            self._free(job)
            sink.handed(
                RowState(
                    tuple(row.next_ids), job.cached, row.draft_tokens,
                    queue_s=job.started - job.submitted, prefill_s=job.first - job.started, shift=row.shift,
                )
            )  # fmt: skip
        except Exception as error:
            self.fail(job, error)

    def _send(self, job: Job, sink: KvSink, group: Group) -> None:
        start, end = self._sent.get(job.number, 0), group.cache.length
        arrays = [tensor.numpy() for tensor in group.cache.read(0, np.arange(start, end))]
        layers = self.lanes[job.adapter].stepper.layers
        count = len(arrays) // layers
        self._sent[job.number] = end
        sink.columns(start, [arrays[layer * count : (layer + 1) * count] for layer in range(layers)])

    def _free(self, job: Job) -> None:
        super()._free(job)
        self._sent.pop(job.number, None)

    def _keep_text(self, job: Job, lane: Lane, group: Group) -> None:
        """An engine that only decodes has no prompt that could begin with this text."""
        if not (isinstance(job.request, HandoffRequest) and job.request.adopted):
            super()._keep_text(job, lane, group)


def _sink(job: Job) -> KvSink | None:
    return job.request.sink if isinstance(job.request, HandoffRequest) else None


class HandoffEngine(Engine):
    """An engine that also takes :class:`HandoffRequest`."""

    scheduler: ClassVar[type[Scheduler]] = HandoffScheduler
