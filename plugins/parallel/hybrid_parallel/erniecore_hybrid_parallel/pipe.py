"""The virtual stage that a rank runs at the moment, and the hidden states and gradients that it sends and receives. The layers
are in ``stages.py``, the order of passes in ``schedules.py``.

Virtual stage i of ``stages x chunks`` is chunk i // stages of stage i % stages. Letters: B batch, S positions, H hidden.
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
    """Channels of a stage: activations from the previous stage and to the next one, gradients the other way. With one chunk per
    stage the first and the last stage have None at their ends; with several, the ends are connected too."""

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
    """What the forward pass of one micro-batch saves for its backward pass: received and sent hidden states."""

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)


class Pipe:
    """The pipeline of this rank; the same object in every copy of a model.

    Args:
        stage, stages, chunks: this stage, the number of stages, chunks per stage. links: to the neighbors.

    Attributes:
        virtual_stage: the one that is running; ``None`` outside of passes.
        width, dtype: of the hidden states. auxiliary: names of the losses that are sent with them.
        layers_here: numbers of this rank's layers in the whole model.
    """

    width, dtype = 0, "float32"
    auxiliary: tuple[str, ...] = ()
    layers_here: tuple[int, ...] = ()

    def __init__(self, stage: int, stages: int, chunks: int, links: Links) -> None:
        self.stage, self.stages, self.chunks, self.links = stage, stages, chunks, links
        self.num_virtual_stages, self.virtual_stage = stages * chunks, None
        self.passed: Passed | None = None
        self._received: Tensor | None = None
        self._auxiliary_sums: Tensor | None = None
        self._leaving: Tensor | None = None

    virtual_stage: int | None

    def __deepcopy__(self, memo: dict[int, Any]) -> Pipe:
        return self

    def virtual_stage_of(self, chunk: int) -> int:
        """The number of this stage's local chunk among all virtual stages."""
        return chunk * self.stages + self.stage

    @property
    def ends(self) -> bool:
        """Whether the head runs: on the last virtual stage, or outside of a pass on the last stage."""
        return (
            self.stage == self.stages - 1
            if self.virtual_stage is None
            else self.virtual_stage == self.num_virtual_stages - 1
        )

    @contextmanager
    def running(self, virtual_stage: int) -> Iterator[None]:
        """Inside the block, this virtual stage runs."""
        before, self.virtual_stage = self.virtual_stage, virtual_stage
        try:
            yield
        finally:
            self.virtual_stage = before

    # ---- one forward pass
    def enter(self, batch: int, positions: int) -> None:
        """Receive the hidden states of the previous virtual stage, if there is one."""
        self._received = self._auxiliary_sums = None
        if self.virtual_stage == 0:
            return
        channel = self.links.before
        assert channel is not None
        stream = channel.receive([batch, positions, self.width], self.dtype)
        if self.auxiliary:
            self._auxiliary_sums = channel.receive([2, len(self.auxiliary)], "float32")
        if paddle.is_grad_enabled():
            assert self.passed is not None, "gradients are wanted, but no schedule is running"
            stream.stop_gradient = False
            self.passed.inputs.append(stream)
        self._received = stream

    def take(self) -> Tensor | None:
        """The received hidden states, once; then None."""
        stream, self._received = self._received, None
        return stream

    def give(self, stream: Tensor) -> Tensor:
        """Keep the hidden states to send; returns a placeholder of zeros, [B, S, 1]."""
        self._leaving = stream
        return paddle.zeros([*stream.shape[:-1], 1], stream.dtype)

    def leave(self, auxiliary: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Send the hidden states and, as plain numbers, the sums of auxiliary losses so far. On the last virtual stage, return
        the sums over the whole model; their gradient is that of the local losses."""
        stream, self._leaving = self._leaving, None
        if self.virtual_stage == self.num_virtual_stages - 1:
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
        """[2, names]: summed losses, and in how many virtual stages each name occurs."""
        zero, one = paddle.zeros([]), paddle.ones([])
        values = [own[name].detach().astype("float32").reshape([]) if name in own else zero for name in self.auxiliary]
        found = paddle.stack([paddle.stack(values), paddle.stack([one if n in own else zero for n in self.auxiliary])])
        return found if self._auxiliary_sums is None else found + self._auxiliary_sums

    def _joined(self, own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        if self._auxiliary_sums is None:
            return own
        # where this part has the same names, nothing needs to be read from the device
        occurs = None if own else self._auxiliary_sums[1].numpy()
        found = dict(own)
        for index, name in enumerate(self.auxiliary):
            if name in own:
                found[name] = own[name] + self._auxiliary_sums[0, index]
            elif occurs is not None and occurs[index]:
                found[name] = self._auxiliary_sums[0, index]
        return found

    # ---- one backward pass
    def backward(self, passed: Passed, loss: Tensor | None) -> None:
        """Receive the gradients of the outputs, run the backward pass, and send those of the inputs. ``loss``: local losses."""
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
    """The pipeline of this rank. Every rank calls it, because it creates process groups."""
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
    """The channel to or from the neighbor on one ``side``; creates all groups of this purpose."""
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
