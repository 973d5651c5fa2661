"""What layers and models may say of themselves beyond what they must: one protocol per question, so that nobody guesses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from erniecore_checkpoint.tensors import Tensor as StoredTensor

    from erniecore.types.decoder import Projection
    from erniecore.types.model import StoredWeight, Tensor, TensorMap


@runtime_checkable
class ProjectionLayer(Protocol):
    """A layer that describes its weights for a ``DecoderPlan``."""

    def projection(self, parameter: str) -> Projection | None:
        """The weight of this name; None where it computes more than a product."""
        ...


@runtime_checkable
class StoredLayer(Protocol):
    """A ``PackedLayer`` that says what it stores, for exporters."""

    def stored(self, parameter: str) -> StoredWeight:
        """What stands for the parameter."""
        ...


@runtime_checkable
class PublicTensors(Protocol):
    """A model that was not built: its public tensors are all there is of it."""

    def public_tensors(self, maps: Sequence[TensorMap], dtype: str) -> dict[str, StoredTensor]:
        """Public name -> tensor, in the order of ``maps``; ``dtype``: empty means as stored."""
        ...


@runtime_checkable
class MeasuredLayer(Protocol):
    """A packed layer, or a ``CacheCodec``, whose loss was measured on calibration data.

    Attributes:
        measured: parameter -> signal to noise of its output in dB; of a codec, ``keys`` and ``values`` -> one per layer.
    """

    measured: Mapping[str, object]


@runtime_checkable
class QuantizerState(Protocol):
    """A layer with tensors that a quantizer put beside the weights which it trains.

    Attributes:
        quantizer_state: their names in the layer. A model directory of the Hugging Face format has no place for them.
    """

    quantizer_state: Sequence[str]


@runtime_checkable
class FloatCodes(Protocol):
    """A layer that stores floating-point numbers of few bits in tensors of whole numbers.

    Attributes:
        code_dtypes: name of such a tensor in the layer -> what the bits are, as safetensors calls it (``F8_E4M3``). Those of a
            file are looked at for NaN and infinity when they are read.
    """

    code_dtypes: Mapping[str, str]


@runtime_checkable
class CalibratedModel(Protocol):
    """A model whose quantizer has something to say about its calibration.

    Attributes:
        quantizer_notes: one sentence each.
    """

    quantizer_notes: Sequence[str]


@runtime_checkable
class RecomputableModel(Protocol):
    """A model that can recompute activations in the backward pass."""

    def set_recompute(self, granularity: str) -> None:
        """``none``, ``attention`` or ``full``."""
        ...


class ElasticSizes(NamedTuple):
    """What a pass may have less of: layers; routed experts of a layer and experts per token, 0 without; rows of ``experts``."""

    layers: int
    experts: int = 0
    num_selected: int = 0
    rows: int = 0


@runtime_checkable
class ElasticModel(Protocol):
    """A ``CausalLM`` of which a pass can run a part. Its ``features`` also takes tensors int64, each left out for all there is:
    ``layers`` [n], places of those that run, the others pass their input on; ``experts`` [rows, m], those of each layer that
    tokens may go to, ascending, with which the selection bias is off; ``num_selected`` [1]. Losses and loads of routers come of
    passes without them. The MTP layers always run; they are the last rows of ``experts``."""

    def elastic_sizes(self) -> ElasticSizes | None:
        """Of the whole model. None: it runs as a whole only."""
        ...

    def expert_loads(self) -> Tensor | None:
        """Assignments to each expert in the last step, float32 [rows, experts], over all ranks, each of which calls it; None: no
        experts."""
        ...


@runtime_checkable
class RateFactors(Protocol):
    """A model some of whose parameters learn at another rate.

    Attributes:
        lr_factors: pattern over parameter names -> factor of the learning rate.
    """

    lr_factors: Mapping[str, float]


@runtime_checkable
class AdaptedModel(Protocol):
    """A model with an adapter that can be turned off."""

    def adapter_off(self) -> AbstractContextManager[None]:
        """Inside, the model is its base."""
        ...


@runtime_checkable
class AdapterChoice(Protocol):
    """A model with several adapters, of which one or none is in use."""

    def set_adapter(self, adapter: str | None) -> None:
        """Use this one; None: the base alone. Raises ``UsageError`` for an unknown name."""
        ...

    def adapter_names(self) -> list[str]:
        """The names that :meth:`set_adapter` takes."""
        ...
