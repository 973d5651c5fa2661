"""What llama.cpp has to know of an ERNIE 4.5 text model: architecture, sizes, and the name of each tensor.

Names and keys are those of the package ``gguf``; the meaning of the keys is that of llama.cpp,
``src/models/ernie4-5.cpp`` and ``ernie4-5-moe.cpp``. What these do not compute is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import gguf

from erniecore.api import UsageError, shorten

#: model_type -> llama.cpp's architecture
ARCHITECTURES = {"ernie4_5": gguf.MODEL_ARCH.ERNIE4_5, "ernie4_5_moe": gguf.MODEL_ARCH.ERNIE4_5_MOE}
_EXPERT = re.compile(r"(model\.layers\.\d+\.mlp\.experts)\.(\d+)\.(\w+\.weight)")
_LAYER_WITH_EXPERTS = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.")
_PREDICTION = re.compile(r"model\.mtp_")


#: config.json's keys of a scaled residual stream, which `--to hf-folded` puts into the weights
_FOLDED = ("gpas", "layer_norm_scaling")


def refused(
    message: str,
    *,
    where: str = "config.json",
    found: object = None,
    expected: str = "",
    fix: str = "export it with --to hf",
) -> UsageError:
    """The error for what a GGUF file of ERNIE 4.5 cannot hold; the caller raises it."""
    shown = "" if found is None else shorten(found)
    return UsageError(message, where=where, found=shown, expected=expected, fix=fix)


def check_architecture(config: Mapping[str, Any]) -> gguf.MODEL_ARCH:
    """llama.cpp's architecture. Raises ``UsageError`` for other models, and for settings that it does not compute."""
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        raise refused(
            "llama.cpp has no architecture for this model that this exporter writes",
            where="config.json: model_type",
            found=kind,
            expected=" or ".join(ARCHITECTURES),
        )
    wanted = {"use_bias": (None, False), "scoring_func": (None, "softmax"), "hidden_act": (None, "silu"),
              "rope_scaling": (None,), "moe_layer_interval": (None, 1), "gpas": (None,),
              "layer_norm_scaling": (None, False)}  # fmt: skip
    for key, values in wanted.items():
        if config.get(key) not in values:
            raise refused(
                "llama.cpp does not compute this model",
                where=f"config.json: {key}",
                found=config[key],
                expected=str(values[-1]),
                **({"fix": "export it with --to hf-folded first, then that directory"} if key in _FOLDED else {}),
            )
    return ARCHITECTURES[kind]


def group_experts(names: Iterable[str]) -> dict[str, list[str]]:
    """Name of a stacked matrix, or of a tensor that stands alone -> public names of its parts, experts in their order."""
    groups: dict[str, dict[int, str]] = {}
    for name in names:
        match = _EXPERT.fullmatch(name)
        key, number = (f"{match[1]}.{match[3]}", int(match[2])) if match else (name, 0)
        groups.setdefault(key, {})[number] = name
    return {key: [parts[number] for number in sorted(parts)] for key, parts in groups.items()}


def without_prediction(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Names of tensors, and those of multi-token prediction, for which llama.cpp has no place in this architecture."""
    kept: list[str] = []
    dropped: list[str] = []
    for name in names:
        (dropped if _PREDICTION.match(name) else kept).append(name)
    return kept, dropped


class Names:
    """llama.cpp's names of the tensors of one model."""

    def __init__(self, arch: gguf.MODEL_ARCH, num_layers: int) -> None:
        self._map = gguf.get_tensor_name_map(arch, num_layers)

    def of(self, name: str) -> str:
        """The name of a public or stacked tensor. Raises ``UsageError`` for one without a place in llama.cpp."""
        spelled = name.replace("e_score_correction_bias", "e_score_correction.bias")
        found: str | None = self._map.get_name(spelled, try_suffixes=(".weight", ".bias"))
        if found is None or (name.endswith(".bias") and not name.endswith("_bias")):
            raise refused("llama.cpp has no place for this tensor", where=name)
        return found


def first_expert_layer(names: Iterable[str], num_layers: int) -> int:
    """How many layers come before those with experts. Raises ``UsageError`` where a layer behind them has none."""
    routed = {int(match[1]) for name in names if (match := _LAYER_WITH_EXPERTS.match(name))}
    first = min(routed, default=num_layers)
    missing = set(range(first, num_layers)) - routed
    if missing:
        raise refused(
            "llama.cpp wants experts in every layer behind the first that has them",
            where="config.json: moe_layer_end_index",
            found=f"layer {min(missing)} has none",
            expected=f"experts in layers {first} to {num_layers - 1}",
        )
    return first


def add_sizes(writer: gguf.GGUFWriter, config: Mapping[str, Any], names: Iterable[str]) -> None:
    """Write the sizes of the model; ``names``: of its public tensors."""
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    head_dim = int(config.get("head_dim") or hidden // heads)
    rope = config.get("rope_parameters") or {}
    writer.add_vocab_size(int(config["vocab_size"]))
    writer.add_context_length(int(config["max_position_embeddings"]))
    writer.add_embedding_length(hidden)
    writer.add_block_count(int(config["num_hidden_layers"]))
    writer.add_feed_forward_length(int(config["intermediate_size"]))
    writer.add_head_count(heads)
    writer.add_head_count_kv(int(config["num_key_value_heads"]))
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(float(config.get("rope_theta") or rope["rope_theta"]))
    writer.add_layer_norm_rms_eps(float(config["rms_norm_eps"]))
    if config["model_type"] == "ernie4_5_moe":
        _add_experts(writer, config, first_expert_layer(names, int(config["num_hidden_layers"])))


def _add_experts(writer: gguf.GGUFWriter, config: Mapping[str, Any], first: int) -> None:
    width, shared = int(config["moe_intermediate_size"]), int(config.get("moe_num_shared_experts") or 0)
    writer.add_expert_count(int(config["moe_num_experts"]))
    writer.add_expert_used_count(int(config["moe_k"]))
    writer.add_expert_feed_forward_length(width)
    writer.add_expert_shared_count(shared)
    if shared:
        writer.add_expert_shared_feed_forward_length(width * shared)
    writer.add_interleave_moe_layer_step(1)
    writer.add_leading_dense_block_count(first)
