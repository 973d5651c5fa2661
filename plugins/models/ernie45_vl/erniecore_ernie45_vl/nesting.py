"""The flat config.json in the nested form of newer libraries (transformers among them): the reverse of ``spelling.flat``. No
paddle, no numpy.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from erniecore.api import Json
from erniecore_ernie45_vl.architecture import VlArchitecture
from erniecore_ernie45_vl.spelling import KINDS, NESTED_TYPE

CLASS = "Ernie4_5_VLMoeForConditionalGeneration"
#: flat keys that the nested form says with others
_REPLACED = frozenset(
    {
        *("model_type", "architectures", "vision_config", "im_patch_id", "tie_word_embeddings"),
        *("rope_theta", "rope_parameters", "rope_3d", "freq_allocation"),
        *("moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"),
    }
)


def nested(source: Json, where: str = "config.json") -> dict[str, Any]:
    """``source``, in either form, as ``text_config`` and ``vision_config`` below the ids of the tokens of images. Unknown keys
    are kept in ``text_config``.

    Raises ``CheckpointError`` as ``VlArchitecture.parse``."""
    from erniecore_ernie45_vl.spelling import flat

    arch, keys = VlArchitecture.parse(source, where), flat(source, where)
    markers = {f"{name}_token_id": token for name, token in asdict(arch.markers).items()}
    text = {key: value for key, value in keys.items() if key not in _REPLACED and key not in markers}
    plain = (arch.head_dim // 2 - arch.time_pairs) // 2
    return {
        **markers,
        "architectures": [CLASS],
        "model_type": NESTED_TYPE,
        "tie_word_embeddings": arch.tie_word_embeddings,
        "text_config": {
            **text,
            "model_type": f"{NESTED_TYPE}_text",
            "tie_word_embeddings": arch.tie_word_embeddings,
            "mlp_layer_types": [KINDS[arch.is_moe(index)] for index in range(arch.num_hidden_layers)],
            "moe_num_experts": arch.num_experts,
            "moe_num_shared_experts": arch.num_shared_experts,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": arch.rope_theta,
                "mrope_section": [plain, plain, arch.time_pairs],
            },
        },
        "vision_config": _vision(arch),
    }


def _vision(arch: VlArchitecture) -> dict[str, Any]:
    vision = arch.vision
    return {
        "model_type": f"{NESTED_TYPE}_vision",
        "depth": vision.depth,
        "hidden_size": vision.hidden_size,
        "intermediate_size": vision.intermediate_size,
        "num_heads": vision.num_heads,
        "hidden_act": "quick_gelu",
        "in_channels": vision.channels,
        "patch_size": vision.patch_size,
        "spatial_merge_size": vision.merge,
        "temporal_merge_size": 2,
        "rms_norm_eps": vision.norm_eps,
    }
