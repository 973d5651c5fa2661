"""What a run with a quantizer leaves: ``model/`` with unrounded weights and, where the quantizer trains the weights,
``quantized/`` beside it.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore_checkpoint.directories import QUANTIZED_DIRECTORY

from erniecore.capabilities import QuantizerCapability
from erniecore.engine.arrays import share_memory
from erniecore.engine.models import quantized
from erniecore.engine.models.model_files import save_model_directory
from erniecore.engine.models.quantized_files import write_quantized
from erniecore.engine.training.full_weights import FullWeights
from erniecore.types.model import ModelBundle

if TYPE_CHECKING:
    from erniecore.engine.context import RunContext


def whole_model(bundle: ModelBundle, weights: Any, rebuilt: Callable[[], Any]) -> Any:
    """The model of ``bundle`` with all its layers and full weights, on rank 0.

    Args:
        weights: the full weights, or that model itself. rebuilt: makes the model of the run again.
    """
    return weights if weights is bundle.model else filled(rebuilt(), weights)


def write_model(bundle: ModelBundle, whole: Any, target: Path) -> Path:
    """``model/``: unrounded weights, without what a quantizer keeps with them."""
    own = quantized.own_state(whole)
    weights = {name: tensor for name, tensor in whole.state_dict().items() if name not in own}
    return save_model_directory(replace(bundle, model=FullWeights(weights) if own else whole), target)


def write_packed(context: RunContext, bundle: ModelBundle, whole: Any, emit: Callable[..., None]) -> None:
    """``quantized/``, if the quantizer trains its weights: the model as it packs it, with the scales that were trained.

    Args:
        whole: see :func:`whole_model`. emit: told ``path`` and ``seconds`` of what was written.
    """
    started, quantizer, config = time.perf_counter(), context.plugins["quantizer"], context.settings.quantizer
    if config is None or QuantizerCapability.TRAINABLE not in quantizer.capabilities:
        return
    full = copy.deepcopy(whole) if whole is bundle.model else whole
    packed = replace(bundle, model=quantized.apply(quantizer, config, full))
    target = context.out / QUANTIZED_DIRECTORY
    write_quantized(packed, target, quantizer, config, context.settings.train.precision)
    emit(path=str(target), seconds=time.perf_counter() - started)


def filled(model: Any, weights: Any) -> Any:
    """``model`` with the tensors of ``full_weights``."""
    tensors = weights.state_dict()
    for name, tensor in model.state_dict().items():
        share_memory(tensors[name], tensor)
    return model
