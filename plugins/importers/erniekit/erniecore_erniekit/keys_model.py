"""ERNIEKit's keys about the model: which one, how it is adapted, and how its layers are computed."""

from __future__ import annotations

from erniecore_key_tables import Key, only, part, renamed, without

KERNEL = (
    "the operators choose their kernels themselves (see `ernie plugins --kind device`); the result is the same up to "
    "rounding"
)
CONFIG_JSON = "the model's config.json decides; `model.architecture` replaces single keys of it"
ROUTER = "for mixture-of-experts models; a dense model has no router"
PEFT = "part of the adapter, see `fine_tuning`"

WHICH: tuple[Key, ...] = (
    part(
        "model_name_or_path",
        "text",
        None,
        "model.path, model.name",
        "a directory. Names of published models choose the plugin; nothing is downloaded",
    ),
    part("stage", "text", "SFT", "method.name", "SFT, VL-SFT, OCR-VL-SFT: `sft`; PT: `pt`; DPO: by `loss_type`"),
    part(
        "continue_training",
        "flag",
        True,
        "model.size, model.architecture, model.tokenizer",
        "`true`: weights are loaded from `model.path`, always. `false`: new weights, from the config.json or the recipe",
    ),
    part(
        "from_scratch",
        "flag",
        True,
        "model.size, model.architecture, model.tokenizer",
        "for VL stages the opposite of `continue_training`, and on by default; other stages do not read it",
    ),
    part("download_hub", "text", None, "model.path", "huggingface: `hf:NAME`; modelscope: `ms:NAME`; not aistudio"),
    part("from_hf_hub", "flag", False, "model.path", "`hf:NAME`"),
    part("from_modelscope", "flag", False, "model.path", "`ms:NAME`"),
    *without(
        "models of AI Studio are fetched by hand: name the directory as `model.path`", ("from_aistudio", "flag", False)
    ),
    *without(
        "both layouts of weights are recognized by their names and shapes",
        ("use_huggingface_model", "flag", False),
        ("convert_from_hf", "flag", False),
        ("save_to_hf", "flag", False),
    ),
    *without(
        "ERNIEKit does not use it either: " + CONFIG_JSON,
        ("bos_token_id", "whole", 0),
        ("eos_token_id", "whole", 1),
        ("max_position_embeddings", "whole", 4096),
    ),
    *without(
        CONFIG_JSON,
        ("moe_gate", "text", "top2_fused"),
        ("rope_3d", "flag", True),
        ("use_moe", "flag", None),
        ("vision_config", "any", None),
        ("moe_use_hard_gate", "flag", False),
    ),
    only(
        "hidden_dropout_prob",
        "number",
        0.0,
        0.0,
        "there is no dropout",
        "models have no dropout; adapters have `adapter.dropout`",
    ),
    only(
        "attention_probs_dropout_prob",
        "number",
        0.0,
        0.0,
        "there is no dropout",
        "models have no dropout; adapters have `adapter.dropout`",
    ),
    *without("it only delays a dropout that does not exist here", ("dropout_warmup_steps", "whole", 0)),
)

ADAPTER: tuple[Key, ...] = (
    part(
        "fine_tuning",
        "text",
        "LoRA",
        "adapter.name",
        "`LoRA`: `lora`, `rslora` or `lora-plus`; `Full`: no adapter. Absent: LoRA. All linear layers, experts included",
    ),
    part("lora", "flag", None, "adapter.name", "`fine_tuning` decides, also where it is absent"),
    part("lora_rank", "whole", 8, "adapter.rank"),
    part("lora_alpha", "number", -1, "adapter.alpha", "-1: 2 * rank, or 4 with `rslora`"),
    part("rslora", "flag", False, "adapter.name, adapter.alpha", "with LoRA+: `lora-plus` with alpha * sqrt(rank)"),
    part("lora_plus_scale", "number", 1.0, "adapter.name, adapter.ratio", "1: no LoRA+"),
    part("rslora_plus", "flag", False, "adapter.name, adapter.alpha, adapter.ratio", "rslora with alpha 4 and ratio 4"),
    part("lora_path", "text", None, "adapter.path", "a directory in ERNIEKit's or PEFT's layout"),
)

ROUTERS: tuple[Key, ...] = (
    part("moe_aux_loss_lambda", "number", 1e-5, "model.router_aux_loss", ROUTER),
    part("moe_z_loss_lambda", "number", 0.0, "model.router_z_loss", ROUTER),
    part("moe_orthogonal_loss_lambda", "number", 0.0, "model.router_orthogonal_loss", ROUTER),
    part("moe_use_aux_free_update_coef", "number", 1e-3, "model.bias_update_rate", ROUTER),
    part(
        "moe_use_aux_free",
        "flag",
        None,
        "model.architecture",
        "`false` switches the selection bias off (`moe_use_aux_free: false` in the architecture); otherwise config.json decides",
    ),
    part("num_nextn_predict_layers", "whole", 0, "model.mtp", "above 0: `true`. How many there are, config.json says"),
    part("multi_token_pred_lambda", "number", 0.3, "method.mtp_weight", "where multi-token prediction is trained"),
    only(
        "moe_group_experts",
        "flag",
        False,
        False,
        "experts are chosen one by one",
        "experts cannot be chosen by groups here",
    ),
    *without(
        "router losses are computed where the router is, and need not travel through a pipeline",
        ("moe_with_send_router_loss", "flag", False),
    ),
    *without(
        "how tokens reach experts is the parallel plugin's matter; all ways compute the same",
        ("moe_multimodal_dispatch_use_allgather", "text", "v2-alltoall-unpad"),
    ),
    part("use_ortho_loss_callback", "flag", False, "model.router_orthogonal_decoupled", ROUTER),
)

COMPUTE: tuple[Key, ...] = (
    *without(
        KERNEL,
        ("use_flash_attention", "flag", True),
        ("use_sparse_flash_attn", "flag", True),
        ("use_mem_eff_attn", "flag", True),
        ("use_flash_attn_with_mask", "flag", True),
        ("fuse_linear", "flag", False),
        ("fuse_rope", "flag", False),
        ("fuse_softmax_mask", "flag", False),
        ("fuse_rms_norm", "flag", True),
        ("fuse_swiglu", "flag", True),
        ("fuse_gate_detach_matmul", "flag", True),
    ),
    *without(
        "packed samples are always told apart by row indices",
        ("use_attn_mask_start_row_indices", "flag", True),
        ("use_attn_mask_startend_row_indices", "flag", True),
    ),
    only(
        "use_global_causal_attn",
        "flag",
        False,
        False,
        "packed samples never see each other",
        "packed samples never see each other here, not even on request",
    ),
    *without(
        "head and loss are always computed for learned positions only, in pieces (`train.loss_chunk`); full logits never exist",
        ("use_sparse_head_and_loss_fn", "flag", False),
        ("use_fused_head_and_loss_fn", "flag", False),
        ("use_recompute_loss_fn", "flag", True),
    ),
    renamed("loss_subbatch_seqlen", "whole", 32768, "train.loss_chunk", "positions per piece of head and loss"),
    part("recompute", "flag", False, "train.recompute", "`false`: none; `true`: by `recompute_granularity`"),
    part(
        "recompute_granularity",
        "text",
        "full",
        "train.recompute",
        "full: full; full_attn: attention; core_attn: core-attention",
    ),
    *without(
        "`train.recompute` has one way to recompute, with the same gradients",
        ("recompute_use_reentrant", "flag", True),
        ("offload_recompute_inputs", "flag", False),
        ("refined_recompute", "any", None),
        ("no_recompute_layers", "any", None),
    ),
    *without(
        "`train.recompute: full` recomputes whole layers, experts and prediction layers included",
        ("use_recompute_moe", "flag", False),
        ("use_recompute_mtp", "flag", False),
    ),
)

KEYS: tuple[Key, ...] = (*WHICH, *ADAPTER, *ROUTERS, *COMPUTE)
