"""A model with the scaling of its residual stream in its weights."""

from __future__ import annotations

from dataclasses import replace

import paddle  # noqa: TID253
import paddle.nn.functional as F  # noqa: TID253
from erniecore_ernie45.architecture import GPAS, LAYER_NORM_SCALING
from erniecore_ernie45.model import Ernie45ForCausalLM
from erniecore_ernie45.residual import fold
from erniecore_ernie45.state import Ernie45StateAdapter

from erniecore.api import CheckpointError, Json
from erniecore.api.model import ModelBundle


def is_scaled(architecture: Json) -> bool:
    """Whether config.json says that the stream is scaled."""
    return any(architecture.get(key) for key in (GPAS, LAYER_NORM_SCALING))


def folded(bundle: ModelBundle, tolerance: float) -> ModelBundle:
    """The same model without scaling; its weights are changed in place.

    Raises:
        CheckpointError: a layer erases the stream, or log-probabilities differ by more than ``tolerance``.
    """
    own, model = bundle.adapter, bundle.model
    if not isinstance(own, Ernie45StateAdapter) or not isinstance(model, Ernie45ForCausalLM):
        message = "only language models of the ERNIE 4.5 family are folded, without a score head"
        raise CheckpointError(message, found=type(model).__name__, fix="use --to hf")
    ids = paddle.to_tensor([[(7919 * place + 13) % model.arch.vocab_size for place in range(64)]])
    with paddle.no_grad():
        before = F.log_softmax(model(ids))
        if reason := fold(model.model.layers):
            raise CheckpointError(
                "the scaling cannot be folded", found=reason, fix="use --to hf, which keeps the gates"
            )
        difference = float((F.log_softmax(model(ids)) - before).abs().max())
    if not difference <= tolerance:
        raise CheckpointError(
            "the folded model is another one",
            found=f"log-probabilities differ by {difference:.3g}",
            expected=f"at most tolerance = {tolerance:g}",
            fix="use --to hf, which keeps the gates, or allow more",
        )
    architecture = {key: value for key, value in bundle.architecture.items() if key not in (GPAS, LAYER_NORM_SCALING)}
    arch = replace(own.arch, gpas="", layer_norm_scaling=False, source=architecture)
    model.arch, model.architecture = arch, architecture
    return replace(bundle, architecture=architecture, adapter=type(own)(arch))
