"""The parts of a vision-language model that are trained or frozen together (``model.train``), by the names of parameters. No
paddle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

Part: TypeAlias = Literal["text", "vision", "resampler", "vision_experts"]
#: part -> what is in the names of its parameters; all others are text
WORDS: Mapping[Part, tuple[str, ...]] = {
    "vision": ("vision_model.",),
    "resampler": (".resampler_model.",),
    "vision_experts": (".vision_experts.", ".gate.weight_1"),
}


def part_of(name: str) -> Part:
    """The part that a parameter belongs to."""
    return next((part for part, words in WORDS.items() if any(word in name for word in words)), "text")


def rate_patterns(factors: Mapping[Part, float]) -> dict[str, float]:
    """Pattern over the names of parameters -> factor of the learning rate; the first match counts."""
    named = {f"*{word}*": factors.get(part, 1.0) for part, words in WORDS.items() for word in words}
    return {**named, "*": factors.get("text", 1.0)}


def choose(model: Any, parts: tuple[Part, ...], factors: Mapping[Part, float]) -> None:
    """Freeze all of ``model`` but ``parts``, and give it their factors of the learning rate."""
    for name, parameter in model.named_parameters():
        if "e_score_correction_bias" not in name:  # never trained by gradients
            parameter.stop_gradient = part_of(name) not in parts
    if factors:
        model.lr_factors = rate_patterns(factors)
