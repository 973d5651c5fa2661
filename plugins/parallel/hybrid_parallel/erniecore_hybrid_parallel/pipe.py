"""Which part of a model a stage of a pipeline runs at the moment, and what goes in and out of it. The layers that ask it
are in ``stages.py``, the order of passes in ``schedules.py``.

Part i of ``stages x chunks`` is chunk i // stages of stage i % stages. Letters: B batch, S positions, H hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from erniecore_hybrid_parallel.channels import Channel
from erniecore_hybrid_parallel.comm import Comm
from erniecore_hybrid_parallel.groups import World
from erniecore_hybrid_parallel.mesh import Mesh, edges


@dataclass(frozen=True)
class Links:
    """Channels of a stage: activations from the stage before and to the next one, gradients the other way. With one stage
    each, the first and the last have None at their ends; with several, the ends are linked too."""

    before: Channel | None
    after: Channel | None
    gradient_before: Channel | None
    gradient_after: Channel | None

    def flush(self) -> None:
        """Wait until everything has been sent."""
        for channel in (self.after, self.gradient_before):
            if channel is not None:
                channel.flush()


@dataclass
class Passed:
    """What one micro-batch left behind in one part, for its backward pass: streams that came in and that went out."""

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)


class Pipe:
    """The pipeline of this rank; the same object in every copy of a model.

    Args:
        stage, stages, chunks: place and size. links: to the neighbors.

    Attributes:
        part: the one that is running; ``None`` between passes.
        width, dtype: of the stream. auxiliary: names of what travels beside it.
    """

    width, dtype = 0, "float32"
    auxiliary: tuple[str, ...] = ()

    def __init__(self, stage: int, stages: int, chunks: int, links: Links) -> None:
        self.stage, self.stages, self.chunks, self.links = stage, stages, chunks, links
        self.parts, self.part = stages * chunks, None
        self.passed: Passed | None = None
        self._received: Tensor | None = None
        self._beside: Tensor | None = None
        self._leaving: Tensor | None = None

    part: int | None

    def __deepcopy__(self, memo: dict[int, Any]) -> Pipe:
        return self

    def part_of(self, chunk: int) -> int:
        """The part that is a chunk of this stage."""
        return chunk * self.stages + self.stage

    @property
    def ends(self) -> bool:
        """Whether what is computed now has a result: it is the last part, or between passes the last stage."""
        return self.stage == self.stages - 1 if self.part is None else self.part == self.parts - 1

    @contextmanager
    def running(self, part: int) -> Iterator[None]:
        """Within the block, ``part`` is the one that runs."""
        before, self.part = self.part, part
        try:
            yield
        finally:
            self.part = before

    # ---- one forward pass
    def enter(self, batch: int, positions: int) -> None:
        """Wait for the stream of the part before, if there is one."""
        self._received = self._beside = None
        if self.part == 0:
            return
        channel = self.links.before
        assert channel is not None
        stream = channel.receive([batch, positions, self.width], self.dtype)
        if self.auxiliary:
            self._beside = channel.receive([2, len(self.auxiliary)], "float32")
        if paddle.is_grad_enabled():
            assert self.passed is not None, "gradients are wanted, but no schedule is running"
            stream.stop_gradient = False
            self.passed.inputs.append(stream)
        self._received = stream

    def take(self) -> Tensor | None:
        """The stream that came in, once; then None."""
        stream, self._received = self._received, None
        return stream

    def give(self, stream: Tensor) -> Tensor:
        """Keep what goes to the next part; returns what stands for the result here, [B, S, 1] zeros."""
        self._leaving = stream
        return paddle.zeros([*stream.shape[:-1], 1], stream.dtype)

    def leave(self, auxiliary: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Send the stream, and beside it the sums of auxiliary losses so far, as plain numbers; on the last part, return
        these sums over the whole model, whose gradient is that of this part's own."""
        stream, self._leaving = self._leaving, None
        if self.part == self.parts - 1:
            return self._joined(auxiliary)
        assert stream is not None, "the norm after the last layer was not called"
        channel = self.links.after
        assert channel is not None
        channel.send(stream)
        if self.auxiliary:
            channel.send(self._sums(auxiliary))
        if paddle.is_grad_enabled():
            assert self.passed is not None
            self.passed.outputs.append(stream)
        return auxiliary

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def _sums(self, own: Mapping[str, Tensor]) -> Tensor:
        """[2, names]: values, and in how many parts the name occurs."""
        zero, one = paddle.zeros([]), paddle.ones([])
        values = [own[name].detach().astype("float32").reshape([]) if name in own else zero for name in self.auxiliary]
        found = paddle.stack([paddle.stack(values), paddle.stack([one if n in own else zero for n in self.auxiliary])])
        return found if self._beside is None else found + self._beside

    def _joined(self, own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        if self._beside is None:
            return own
        # where this part has the same names, nothing needs to be read from the device
        occurs = None if own else self._beside[1].numpy()
        found = dict(own)
        for index, name in enumerate(self.auxiliary):
            if name in own:
                found[name] = own[name] + self._beside[0, index]
            elif occurs is not None and occurs[index]:
                found[name] = self._beside[0, index]
        return found

    # ---- one backward pass
    def backward(self, passed: Passed, loss: Tensor | None) -> None:
        """Gradients of what went out come in, those of what came in go out. ``loss``: its own part of the gradient."""
        with_graph = [] if loss is None or loss.stop_gradient else [(loss, None)]
        for stream in passed.outputs:
            channel = self.links.gradient_after
            assert channel is not None
            gradient = channel.receive(stream.shape, stream.dtype)
            if not stream.stop_gradient:
                with_graph.append((stream, gradient))
        if with_graph:
            paddle.autograd.backward([tensor for tensor, _ in with_graph], [gradient for _, gradient in with_graph])
        for stream in passed.inputs:
            channel = self.links.gradient_before
            assert channel is not None
            channel.send(paddle.zeros_like(stream) if stream.grad is None else stream.grad)


def open_pipe(mesh: Mesh, world: World, chunks: int) -> Pipe:
    """The pipeline of this rank; every rank calls it, since groups are made."""
    lines: list[list[int]] = mesh.groups("pipeline")
    line = next(ranks for ranks in lines if world.rank in ranks)
    stage, stages = line.index(world.rank), len(line)
    links = Links(
        before=_channel(world, lines, stage, -1, +1, chunks > 1, "stream"),
        after=_channel(world, lines, stage, +1, +1, chunks > 1, "stream"),
        gradient_before=_channel(world, lines, stage, -1, -1, chunks > 1, "gradient"),
        gradient_after=_channel(world, lines, stage, +1, -1, chunks > 1, "gradient"),
    )
    return Pipe(stage, stages, chunks, links)


def _channel(
    world: World, lines: list[list[int]], stage: int, side: int, direction: int, round_: bool, purpose: str
) -> Channel | None:
    """To or from the neighbor on one ``side``; all groups of the purpose are made on the way."""
    found: Comm | None = None
    for line in lines:
        size = len(line)
        for sender, receiver in edges(line, direction, round_):
            comm = world.comm([[sender, receiver]], purpose)
            neighbor = line[(stage + side) % size]
            sends = side == direction
            mine = (world.rank, neighbor) if sends else (neighbor, world.rank)
            if world.rank in line and (sender, receiver) == mine:
                found = comm
    return None if found is None else Channel(found)
