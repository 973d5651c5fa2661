"""What models that see need for FastDeploy: a chat template that marks images as the server looks for them, and which quantized
forms can be written.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from erniecore.api import UsageError
from erniecore.api.export import ModelBundle
from erniecore_fastdeploy.contract_vision import MARKERS, OCR, VL, has_vision

#: modules of the Paddle layout that the server never quantizes
BESIDE = ("vision_model.", "ernie.resampler_model.")
_INTEGERS = frozenset({"int8", "int4"})


def num_text_experts(architecture: Mapping[str, Any]) -> int:
    """Experts from this number on are those of vision; 0: there are none of these."""
    return int(architecture["moe_num_experts"][0]) if architecture.get("model_type") == VL else 0


def for_server(bundle: ModelBundle) -> ModelBundle:
    """The bundle with the chat template that the server needs: of ERNIE 4.5 VL it replaces ``<|image@placeholder|>`` by the
    tokens of an image, where other libraries have ``<|IMAGE_PLACEHOLDER|>``."""
    tokenizer = bundle.tokenizer
    if bundle.architecture.get("model_type") != VL or tokenizer is None or tokenizer.chat_template is None:
        return bundle
    from erniecore_text import JinjaChatTemplate

    before: Any = tokenizer.chat_template
    source = before.source
    for ours, marker in MARKERS.items():
        source = source.replace(ours, marker)
    template = JinjaChatTemplate(source, before.turn_end, before.stop, before.variables, before.file)
    changed = copy.copy(tokenizer)
    changed.chat_template = template
    return replace(bundle, tokenizer=changed)


def check_vision(
    architecture: Mapping[str, Any], quant_dtypes: Collection[str], refused: Callable[[str, str], UsageError]
) -> None:
    """Raises ``UsageError`` for a model that sees in a form that the server cannot load."""
    if architecture.get("model_type") == OCR:
        raise refused(
            "a quantized PaddleOCR-VL: the server reads it in the Hugging Face format alone, which has no int8 and int4",
            "the model as it is; ernie serve --backend fastdeploy quantization=wint8 rounds it when the server starts",
        )
    if has_vision(architecture) and not set(quant_dtypes) <= _INTEGERS:
        found = f"weights of vision experts as {', '.join(sorted(quant_dtypes))}"
        raise refused(f"{found}, whose scales its loader has no names for", "int8 or int4 per output")
