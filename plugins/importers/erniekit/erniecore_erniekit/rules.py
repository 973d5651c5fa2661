"""What several ERNIEKit values mean together: pure functions from their values to ours. They know no file and no keys.

Each raises ``ValueError`` with words for the user when the values mean nothing in ERNIEKit either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from erniecore_key_tables import one_of

#: format names of ERNIEKit's data types
FORMATS = {
    "erniekit": "erniekit",
    "alpaca": "alpaca",
    "chatml": "messages",
    "messages": "messages",
    "sharegpt": "messages",
    "query_response": "query-response",
    "query-response": "query-response",
}
#: compute_type -> (precision, quantizer)
COMPUTE = {
    "bf16": ("bfloat16", ""),
    "fp16": ("float16", ""),
    "fp8": ("bfloat16", "fp8-qat"),
    "wint8": ("bfloat16", "wint8"),
    "wint4/8": ("bfloat16", "wint4-8"),
    "nf4": ("bfloat16", "nf4"),
}
#: weight_quantize_algo -> the compute_type that stands for it
ALGORITHMS = {
    "weight_only_int8": "wint8",
    "weight_only_mix": "wint4/8",
    "nf4": "nf4",
    "fp8linear": "fp8",
    "fp8_linear": "fp8",
}
#: loss_type -> method
LOSSES = {
    "sigmoid": "dpo",
    "hinge": "hinge",
    "ipo": "ipo",
    "simpo": "simpo",
    "dpop": "dpop",
    "kto_pair": "kto-pair",
    "sppo_hard": "sppo",
    "nca_pair": "nca",
    "orpo": "orpo",
    "or": "orpo",
}
STAGES = {"SFT": "sft", "VL-SFT": "sft", "OCR-VL-SFT": "sft", "PT": "pt", "DPO": ""}
RECOMPUTE = {"full": "full", "full_attn": "attention", "core_attn": "core-attention"}
SCHEDULES = {
    "linear": "linear",
    "cosine": "cosine",
    "polynomial": "polynomial",
    "constant": "constant",
    "constant_with_warmup": "constant-with-warmup",
}
DECAYS = {"half_life": "half-life", "1-sqrt": "1-sqrt"}
MIXES = {
    "random": "weighted",
    "concat": "concat",
    "interleave_under": "interleave-under",
    "interleave_over": "interleave-over",
}


class Adapter(NamedTuple):
    """An adapter of ours. ``ratio``: learning rate of B relative to A; 1 where it is no LoRA+."""

    name: str
    rank: int
    alpha: float
    ratio: float


def adapter(rank: int, alpha: float, rslora: bool, plus_scale: float, rslora_plus: bool) -> Adapter:
    """ERNIEKit's LoRA: s = alpha / r, or alpha / sqrt(r) with rslora; alpha -1 is 2 r, or 4 with rslora; ``rslora_plus``
    is rslora with alpha 4 and scale 4.

    rslora together with LoRA+ is LoRA+ with alpha' = alpha sqrt(r), because alpha' / r = alpha / sqrt(r).
    """
    if rank < 1:
        raise ValueError("must be 1 or more")
    if rslora_plus:
        rslora, plus_scale, alpha = True, 4.0, 4.0
    if alpha <= 0:
        alpha = 4.0 if rslora else 2.0 * rank
    if plus_scale == 1.0:
        return Adapter("rslora" if rslora else "lora", rank, alpha, 1.0)
    return Adapter("lora-plus", rank, alpha * math.sqrt(rank) if rslora else alpha, plus_scale)


class Schedule(NamedTuple):
    """Of the learning rate. ``decay_steps``: length of the WSD tail, 0: a tenth of all steps."""

    name: str
    decay_steps: int = 0
    shape: str = ""


def schedule(name: str, max_steps: int, decay_function: str = "half_life", *, cosine_only: bool = False) -> Schedule:
    """``lr_scheduler_type``; ``wsd:N`` is constant until step N.

    Args:
        cosine_only: the trainers for vision and language take every name but ``wsd`` for cosine.
    """
    kind, _, steady = name.partition(":")
    if kind == "wsd":
        shape = one_of(decay_function, DECAYS)
        if not steady:
            return Schedule("wsd", 0, shape)
        if not steady.isdigit():
            raise ValueError("must be wsd:N with the step N at which the decay begins")
        if max_steps <= 0:
            raise ValueError("needs max_steps: the length of the decay is max_steps - N")
        if int(steady) >= max_steps:
            return Schedule("constant-with-warmup")
        return Schedule("wsd", max_steps - int(steady), shape)
    if cosine_only:
        return Schedule("cosine")
    return Schedule(one_of(name, {**SCHEDULES, "wsd": "wsd"}))


def every(strategy: str, steps: int, max_steps: int, epochs: float) -> int | None:
    """Steps between two events of a strategy: 0 only at the end, ``None`` where it depends on the data.

    ERNIEKit turns ``epoch`` into ``int(max_steps / num_train_epochs)`` steps.
    """
    if strategy in ("no", "false"):
        return 0
    if strategy == "steps":
        return max(steps, 0)
    if strategy != "epoch":
        raise ValueError("must be no, steps or epoch")
    if max_steps > 0:
        return max(int(max_steps / epochs), 1)
    return 0 if epochs <= 1 else None


def sources(paths: Sequence[str], types: Sequence[str], probs: Sequence[str]) -> list[dict[str, Any]]:
    """Comma lists of equal length as data sources. One type is for all paths; without probabilities all count the same."""
    if len(types) not in (1, len(paths)):
        raise ValueError(f"{len(types)} types for {len(paths)} paths")
    if probs and len(probs) != len(paths):
        raise ValueError(f"{len(probs)} probabilities for {len(paths)} paths")
    formats = list(types) * (len(paths) if len(types) == 1 else 1)
    found: list[dict[str, Any]] = []
    for i, path in enumerate(paths):
        source: dict[str, Any] = {"path": path}
        if formats[i]:
            source["format"] = formats[i]
        if probs:
            source["weight"] = weight(probs[i])
        found.append(source)
    return [s for s in found if s.get("weight") != 0]


def weight(text: str) -> float:
    """A sampling probability, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"a probability must be a number (got {text})") from None
    if not 0 <= value < math.inf:
        raise ValueError(f"a probability must be 0 or more (got {text})")
    return value


def blend(text: str) -> list[tuple[float, str]]:
    """``0.4 /a 0.6 /b`` as (weight, path); a single path has weight 1."""
    parts = text.split()
    if len(parts) == 1:
        return [(1.0, parts[0])]
    if not parts or len(parts) % 2:
        raise ValueError("must be weights and paths in turn, such as 0.4 /a 0.6 /b")
    return [(weight(parts[i]), parts[i + 1]) for i in range(0, len(parts), 2)]


def eval_fraction(split: str) -> float:
    """``950,50`` or ``998,1,1`` (training, evaluation, test) as the evaluation's share of training plus evaluation."""
    shares = [weight(part) for part in split.split(",")]
    if len(shares) not in (2, 3) or not shares[0]:
        raise ValueError("must be the shares of training and evaluation, such as 950,50")
    return shares[1] / (shares[0] + shares[1])


def sharding_stage(text: str) -> int:
    """``stage2`` (also with ``offload``) as 2; 0 without one."""
    stages = {"stage1": 1, "stage2": 2, "stage3": 3}
    named = [stages[word] for word in text.split() if word in stages]
    if not named and text.strip() not in ("", "offload"):
        raise ValueError("must be stage1, stage2 or stage3")
    return named[0] if named else 0


def ratio(text: str) -> tuple[float, float]:
    """``[a, b]`` of ``modality_ratio``."""
    parts = text.strip("[]() ").split(",")
    if len(parts) != 2:
        raise ValueError("must be two numbers, such as [1,1]")
    return weight(parts[0]), weight(parts[1])
