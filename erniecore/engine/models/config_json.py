"""What config.json says of a model beside its architecture: which of our quantizers wrote the weights, and whether there is a
score head, as a reward model has. Imports no paddle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from erniecore_system.files import read_json

from erniecore.config.packed_base import METHOD, QUANTIZATION, quantizer_of
from erniecore.types.records import Json

_LANGUAGE_MODEL, _CLASSIFIER = "ForCausalLM", "ForSequenceClassification"


def quantized_by(architecture: Json, name: str, settings: Json) -> dict[str, Any]:
    """``architecture`` as that of a model quantized by plugin ``name`` with these settings."""
    return {**architecture, QUANTIZATION: {"quant_method": METHOD, "quantizer": name, "settings": dict(settings)}}


def is_quantized(directory: str | Path) -> bool:
    """Whether a model directory holds weights of one of our quantizers."""
    try:
        content = read_json(Path(directory) / "config.json")
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and bool(quantizer_of(content))


def has_score(architecture: Json) -> bool:
    """Whether config.json describes a model with a score head."""
    return any(str(name).endswith(_CLASSIFIER) for name in architecture.get("architectures") or ())


def with_score(architecture: Json) -> dict[str, Any]:
    """config.json of the same model with a score head, in the words of transformers."""
    if has_score(architecture):
        return dict(architecture)
    names = architecture.get("architectures") or [_class_of(str(architecture.get("model_type", "")))]
    return {
        **architecture,
        "architectures": [str(name).removesuffix(_LANGUAGE_MODEL) + _CLASSIFIER for name in names],
        "num_labels": 1,
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "problem_type": "regression",
    }


def _class_of(model_type: str) -> str:
    """``ernie4_5_moe`` -> ``Ernie4_5_Moe``, as transformers names classes."""
    return "_".join(part.capitalize() for part in model_type.split("_"))
