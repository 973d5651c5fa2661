"""What a parallel strategy and a quantizer must know of a model with experts; what it must know of them stays their own.

Letters: B batch, S sequence, s positions here, T tokens, E experts, k experts per token, H hidden, I width of an expert.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import paddle

    Tensor: TypeAlias = paddle.Tensor


@runtime_checkable
class ExpertLayer(Protocol):
    """Routed experts as stacked parameters ``gate_proj``, ``up_proj`` [E, H, I] and ``down_proj`` [E, I, H], first axis the
    experts (style ``expert`` in the model's ``Layout``): down(silu(gate x) * up x).

    A strategy that spreads experts over ranks calls the layer with the tokens that came to this rank and with its own
    experts; a quantizer puts another ``ExpertLayer`` in its place. Neither changes what the model calls.
    """

    def expert_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Name -> shape of the three stacks, as much as is here, whatever they are stored as."""
        ...

    def forward(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """x [T, H], experts int64 [T, k] (-1: none), weights float32 [T, k] -> weighted sums [T, H]."""
        ...


@runtime_checkable
class SourcedExperts(Protocol):
    """An ``ExpertLayer`` that treats the tokens of one rank as a batch with statistics of its own, such as a scale."""

    def expect_tokens(self, sources: Tensor, num_ranks: int) -> None:
        """Before a pass: the rank that each token of ``x`` comes from, int64 [T], and how many ranks there are."""
        ...


@dataclass
class ExpertChoices:
    """Which experts a router chose in its last pass, and which it takes in place of its own choice.

    Attributes:
        given: int64 [T, k] for the passes that follow, in training mode; None: the router chooses.
        always: ``given`` holds outside of training mode, too.
        taken: int64 [T, k] of the last pass, best first, padding included; None: there was none.
        sequences: B, of how many sequences the T tokens are, the same number of each. Where ranks have positions of them, the
            choices are those of all positions, and ``taken`` may have further ones at the end of each sequence.
    """

    given: Tensor | None = None
    always: bool = False
    taken: Tensor | None = None
    sequences: int = 1


@runtime_checkable
class ReplayedRouter(Protocol):
    """A layer whose choice of experts a method can record and give. Scores and weights are computed as ever."""

    @property
    def num_routers(self) -> int:
        """Routers of this layer; choices are those of the first."""
        ...

    choices: ExpertChoices | None


class LoadReduction(Protocol):
    """Expert loads over all ranks; a strategy hands it to a :class:`BalancedModel`."""

    def sum_tokens(self, loads: Tensor) -> Tensor:
        """Loads summed over the ranks that saw other tokens: a new tensor. Every rank with experts calls it once per step."""
        ...

    def gather_layers(self, rows: Tensor) -> Tensor:
        """[1, n] of this rank -> [N, n] of the N ranks that hold different layers."""
        ...

    @property
    def splits_layers(self) -> bool:
        """Whether ranks hold different layers, so that :meth:`gather_layers` must be called by all of them."""
        ...


@runtime_checkable
class BalancedModel(Protocol):
    """A model that keeps statistics of its experts' loads, to balance them without a loss or to report them."""

    def reduce_loads(self, reduction: LoadReduction) -> None:
        """Once, before the first step of a run on several ranks: loads are to be reduced like this."""
        ...


class SequenceShard(Protocol):
    """How statistics see whole sequences where ranks have different positions of them."""

    def own(self, values: Tensor) -> Tensor:
        """[B, positions of this rank's context] -> [B, s], of the positions that a layer computes here."""
        ...

    def joined(self, values: Tensor) -> Tensor:
        """[B, s, n] -> [B, S, n], in the order of the sequence."""
        ...

    def cut(self, values: Tensor) -> Tensor:
        """[B, S, n] -> [B, s, n]: of the positions that a layer computes here; the last one is repeated where it has more."""
        ...

    def common(self, loss: Tensor) -> Tensor:
        """A loss of weights alone, which every rank computes: such that its gradient is summed once."""
        ...

    def largest(self, values: Tensor) -> Tensor:
        """Elementwise the largest of the ranks with other positions of the same sequences."""
        ...


class WholeSequences:
    """Every rank has every position: the :class:`SequenceShard` of a model that no strategy has cut."""

    def own(self, values: Tensor) -> Tensor:
        return values

    def joined(self, values: Tensor) -> Tensor:
        return values

    def cut(self, values: Tensor) -> Tensor:
        return values

    def common(self, loss: Tensor) -> Tensor:
        return loss

    def largest(self, values: Tensor) -> Tensor:
        return values


@runtime_checkable
class SequenceStatistics(Protocol):
    """A layer with statistics of whole sequences, such as a router with losses or a capacity."""

    def shard_sequences(self, shard: SequenceShard) -> None:
        """From now on this rank computes some positions of each sequence. Raises ``ValueError`` with the reason when the
        layer cannot do so."""
        ...
