"""LLaMA-Factory's arguments about the model: which one, how it is adapted, quantized and computed."""

from __future__ import annotations

from erniecore_key_tables import Key, only, part, without

KERNEL = "the operators choose their kernels themselves (see `ernie plugins --kind device`); results are the same up to rounding"
HUB = "`model.path: hf:OWNER/NAME@REVISION` fetches a model; HF_TOKEN is the token, XDG_CACHE_HOME the cache"
VOCABULARY = "the vocabulary is that of the model directory"
FREEZE = "only with `finetuning_type: freeze`, which there is not here"

WHICH: tuple[Key, ...] = (
    part(
        "model_name_or_path",
        "text",
        None,
        "model.path, model.name",
        "a directory. Names of published ERNIE models choose the plugin; nothing is downloaded; a run refuses other families",
    ),
    part("adapter_name_or_path", "list", None, "adapter.path", "the adapter to go on with"),
    *without("name the whole path as `adapter_name_or_path`", ("adapter_folder", "text", None)),
    part(
        "train_from_scratch",
        "flag",
        False,
        "model.architecture, model.tokenizer",
        "`true`: new weights, from the config.json",
    ),
    *without(
        HUB,
        ("cache_dir", "text", None),
        ("model_revision", "text", "main"),
        ("hf_hub_token", "text", None),
        ("ms_hub_token", "text", None),
        ("om_hub_token", "text", None),
    ),
    *without("code of a model directory is never run", ("trust_remote_code", "flag", False)),
    *without("there is one tokenizer; it gives the same tokens", ("use_fast_tokenizer", "flag", True)),
    *without(
        "weights are read straight to where they are used",
        ("low_cpu_mem_usage", "flag", True),
        ("offload_folder", "text", "offload"),
        ("device_map", "any", None),
    ),
    only("resize_vocab", "flag", False, False, VOCABULARY, VOCABULARY),
    only(
        "split_special_tokens",
        "flag",
        False,
        False,
        "special tokens in texts are never read as such",
        "texts are split by the tokenizer as they are; special tokens in them are plain text",
    ),
    part("add_tokens", "list", None, "", "the vocabulary is that of the model directory"),
    part("add_special_tokens", "list", None, "", "the vocabulary is that of the model directory"),
    part("new_special_tokens_config", "text", None, "", "the vocabulary is that of the model directory"),
    *without(VOCABULARY, ("init_special_tokens", "text", "noise_init")),
    part(
        "rope_scaling",
        "text",
        None,
        "",
        "the model's config.json decides; `model.architecture` replaces single keys of it",
    ),
    *without("set by `cutoff_len`", ("model_max_length", "whole", None)),
    part("moe_aux_loss_coef", "number", None, "model.router_aux_loss", "for mixture-of-experts models"),
    only(
        "mixture_of_depths", "text", None, None, "models are built as config.json says", "there is no mixture of depths"
    ),
    only("use_llama_pro", "flag", False, False, "all layers of the model are there", "layers cannot be added"),
    *without("`ernie plan` lists parameters", ("print_param_status", "flag", False)),
)

#: converted by ``convert_media``
PARTS: tuple[Key, ...] = (
    part("freeze_vision_tower", "flag", True, "model.train", "of `finetuning_type: full`"),
    part("freeze_multi_modal_projector", "flag", True, "model.train", "of `finetuning_type: full`"),
    part("freeze_language_model", "flag", False, "model.train", "of `finetuning_type: full`"),
)

ADAPTER: tuple[Key, ...] = (
    part(
        "finetuning_type",
        "text",
        "lora",
        "adapter.name",
        "lora: `lora`, `rslora`, `dora` or `lora-plus`; oft: `oft`; full: no adapter. Absent: LoRA. freeze there is not",
    ),
    part("lora_rank", "whole", 8, "adapter.rank"),
    part("lora_alpha", "whole", None, "adapter.alpha", "absent: 2 * rank"),
    part("lora_dropout", "number", 0.0, "adapter.dropout"),
    part("lora_target", "list", ["all"], "adapter.targets", "all: `all-linear`; names of modules as they are"),
    part("loraplus_lr_ratio", "number", None, "adapter.name, adapter.ratio"),
    *without("adapters have no embeddings", ("loraplus_lr_embedding", "number", 1e-06)),
    part("use_rslora", "flag", False, "adapter.name"),
    part("use_dora", "flag", False, "adapter.name"),
    part("pissa_init", "flag", False, "adapter.init"),
    *without("the singular values are computed exactly", ("pissa_iter", "whole", 16)),
    *without("a saved PiSSA adapter is an ordinary one of twice the rank, always", ("pissa_convert", "flag", False)),
    part("additional_target", "list", None, "", "modules beside the adapter cannot be trained"),
    part(
        "create_new_adapter",
        "flag",
        False,
        "",
        "`false`: training goes on with the adapter. `true`: merge it first (`ernie merge`)",
    ),
    *without("PEFT computes linear layers without it", ("module_dropout", "number", 0.0)),
    part(
        "oft_rank",
        "whole",
        0,
        "",
        "a number of blocks, which differ in size from layer to layer: give `oft_block_size`",
    ),
    part("oft_block_size", "whole", 32, "adapter.block_size", "of `finetuning_type: oft`"),
    part("oft_target", "list", ["all"], "adapter.targets", "of `finetuning_type: oft`; all: `all-linear`"),
    *without(
        FREEZE,
        ("freeze_trainable_layers", "whole", 2),
        ("freeze_trainable_modules", "list", ["all"]),
        ("freeze_extra_modules", "list", None),
    ),
    *PARTS,
)

QUANTIZATION: tuple[Key, ...] = (
    part("quantization_bit", "whole", None, "quantizer.name", "4: `nf4`; 8: `wint8`"),
    part("quantization_type", "text", "nf4", "quantizer.name", "nf4; fp4 there is not"),
    part(
        "quantization_method", "text", "bnb", "quantizer.name", "how the weights are rounded is the quantizer's matter"
    ),
    *without(
        "scales are kept as they are; the weights have the same values up to their rounding",
        ("double_quantization", "flag", True),
    ),
    *without("weights are read straight to where they are used", ("quantization_device_map", "text", None)),
    part("fp8", "flag", False, "quantizer.name", "`fp8-qat`: weights and inputs of linear layers are rounded to FP8"),
    *without("the device chooses", ("fp8_backend", "text", "auto")),
    *without(
        "how weights travel is the parallel plugin's matter", ("fp8_enable_fsdp_float8_all_gather", "flag", False)
    ),
)

COMPUTE: tuple[Key, ...] = (
    part("bf16", "flag", False, "train.precision", "bfloat16, with float32 masters in the optimizer"),
    part("fp16", "flag", False, "train.precision", "float16"),
    part("pure_bf16", "flag", False, "train.precision", "as `bf16`: the optimizer has float32 masters"),
    *without(
        "`train.precision` decides",
        ("fp16_opt_level", "text", "O1"),
        ("half_precision_backend", "text", "auto"),
        ("fp16_backend", "text", "auto"),
        ("bf16_full_eval", "flag", False),
        ("fp16_full_eval", "flag", False),
        ("tf32", "flag", None),
        ("compute_dtype", "any", None),
        ("infer_dtype", "text", "auto"),
    ),
    part(
        "disable_gradient_checkpointing", "flag", False, "train.recompute", "`false`, the default: full; `true`: none"
    ),
    *without(
        "`disable_gradient_checkpointing` decides; there is one way to recompute, with the same gradients",
        ("gradient_checkpointing", "flag", False),
        ("gradient_checkpointing_kwargs", "any", None),
        ("use_reentrant_gc", "flag", True),
        ("use_unsloth_gc", "flag", False),
    ),
    *without(
        KERNEL,
        ("flash_attn", "text", "auto"),
        ("use_unsloth", "flag", False),
        ("enable_liger_kernel", "flag", False),
        ("use_liger_kernel", "flag", False),
        ("liger_kernel_config", "any", None),
        ("use_v1_kernels", "flag", False),
        ("torch_compile", "flag", False),
        ("torch_compile_backend", "text", None),
        ("torch_compile_mode", "text", None),
        ("torchdynamo", "text", None),
        ("jit_mode_eval", "flag", False),
        ("use_ipex", "flag", False),
    ),
    only("shift_attn", "flag", False, False, "attention sees the whole sample", "there is no shifted sparse attention"),
    *without(
        "norms and losses are computed in float32, always",
        ("upcast_layernorm", "flag", False),
        ("upcast_lmhead_output", "flag", False),
    ),
    *without("packed samples never see each other, see `neat_packing`", ("block_diag_attn", "flag", False)),
)
