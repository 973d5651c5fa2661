"""What a decoder is made of, as data: for kernels that compute a whole pass over new tokens in one call. A model that can
say it does (:class:`Planned`); its own forward pass remains the definition. No behavior here.

Letters: I inputs, O outputs, E experts, H hidden, V vocabulary, r rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from erniecore.types.model import StoredWeight

if TYPE_CHECKING:
    import paddle

    Tensor: TypeAlias = paddle.Tensor


@dataclass(frozen=True, slots=True)
class Update:
    """``scale (x first) second`` beside a product: ``first`` [I, r], ``second`` [r, O]."""

    first: Tensor
    second: Tensor
    scale: float


@dataclass(frozen=True, slots=True)
class Projection:
    """y = x W + b, or a stack of them.

    Attributes:
        weight: [.., I, O], or [O, I] where ``transposed``; or what is stored of it.
        outputs: O. bias: [O] or None. update: what an adapter adds, or None.
    """

    weight: Tensor | StoredWeight
    outputs: int
    bias: Tensor | None = None
    transposed: bool = False
    update: Update | None = None


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """Experts of which each token takes the ``num_selected`` with the highest score + ``selection_bias``, weighted by their
    scores over max(sum, ``norm_min``).

    Attributes:
        router: float32 [H, E]. selection_bias: float32 [1, E]. scoring: ``softmax`` or ``sigmoid`` of x router.
        gate, up, down: stacks [E, I, O].
    """

    router: Tensor
    selection_bias: Tensor
    gate: Projection
    up: Projection
    down: Projection
    num_selected: int
    norm_min: float
    scoring: str


@dataclass(frozen=True, slots=True)
class DecoderBlock:
    """x += o(attention(norm x)); x += down(silu(gate n) * up n) + experts(n), with n = mlp_norm x.

    Attributes:
        mlp: gate, up and down of the MLP or of the shared experts; None: there is none.
        experts: None: nothing is routed.
    """

    norm: Tensor
    q: Projection
    k: Projection
    v: Projection
    o: Projection
    mlp_norm: Tensor
    mlp: tuple[Projection, Projection, Projection] | None
    experts: RoutedExperts | None = None


@dataclass(frozen=True, slots=True)
class DecoderPlan:
    """A causal decoder with RMS norms before each half of a block, grouped key/value heads, and rotary positions over
    adjacent pairs. Tensors are the model's own, not copies.

    Attributes:
        embedding: [V, H]. frequencies: float32 [d / 2], see ``ops.rope_frequencies``. head_dim: d.
        head: from H to V. epsilon: of every norm. embedding_scales: float32 [V], of an embedding in int8.
    """

    embedding: Tensor
    blocks: tuple[DecoderBlock, ...]
    norm: Tensor
    head: Projection
    head_dim: int
    epsilon: float
    frequencies: Tensor
    embedding_scales: Tensor | None = None


@runtime_checkable
class Planned(Protocol):
    """A ``CausalLM`` that can describe its decoder."""

    def decoder_plan(self) -> DecoderPlan | None:
        """What it is made of now; None where that cannot be said, such as with layers that are cut or hooked."""
        ...


@runtime_checkable
class CompactEmbedding(Protocol):
    """A ``CausalLM`` whose embedding, and the head that is tied to it, can be held in bfloat16 while it computes in float32: half
    the bytes of what is the largest matrix of a decoding step."""

    def hold_embedding(self) -> None:
        """Do so where no value changes, for a model that no one trains."""
        ...


@runtime_checkable
class DecodesWithRanks(Protocol):
    """A ``CausalLM`` of which a rank has a part, so that passes of a generation need other ranks. A strategy makes it."""

    def decoding(self) -> AbstractContextManager[None]:
        """Around a generation: all ranks enter it equally often, and each makes as many passes within as its own texts need.
        At its end a rank makes passes for nothing until the others have theirs. Nested: the outermost counts."""
        ...

    def rest(self) -> None:
        """Within a generation: make passes for nothing until no other rank needs one. All ranks call it equally often."""
        ...

    def cached_layers(self, count: int) -> Sequence[int]:
        """Those of the first ``count`` layers that are here: the ones that have keys and values of past positions."""
        ...
