"""ERNIEKit's keys about many devices and low precision, and those that belong to other commands than training."""

from __future__ import annotations

from erniecore_key_tables import Key, part, without

OVERLAP = "how the parallel plugin hides communication is its own matter; the result is the same"
STAGES = "the parallel plugin divides the layers among its stages itself; the result is the same"
SERVER = "about serving: `ernie serve --backend NAME` takes the settings of its server plugin as key=value words"
HUB = "`ernie export RUN --out DIR --push hf:OWNER/NAME` uploads"

PARALLEL: tuple[Key, ...] = (
    part("tensor_parallel_degree", "whole", 1, "parallel.name, parallel.tensor", "all degrees 1: `parallel: single`"),
    part(
        "pipeline_parallel_degree", "whole", 1, "parallel.name, parallel.pipeline", "all degrees 1: `parallel: single`"
    ),
    part(
        "sharding_parallel_degree", "whole", 1, "parallel.name, parallel.sharding", "all degrees 1: `parallel: single`"
    ),
    part("data_parallel_degree", "whole", 1, "parallel.name, parallel.data", "all degrees 1: `parallel: single`"),
    part("sep_parallel_degree", "whole", 1, "parallel.name, parallel.context", "all degrees 1: `parallel: single`"),
    part("context_parallel_degree", "whole", 1, "parallel.name, parallel.context", "all degrees 1: `parallel: single`"),
    part("expert_parallel_degree", "whole", 1, "parallel.name, parallel.expert", "all degrees 1: `parallel: single`"),
    part(
        "sharding",
        "words",
        None,
        "parallel.sharding_stage",
        "stage1: 1 (optimizer), stage2: 2, stage3: 3; on one rank nothing",
    ),
    part(
        "moe_group",
        "text",
        "dummy",
        "parallel.expert",
        "data, dp: as many as `data_parallel_degree`; mp: nothing, `parallel.tensor` spreads the experts, too",
    ),
    *without(
        OVERLAP,
        ("tensor_parallel_config", "any", None),
        ("tensor_parallel_output", "flag", True),
        ("pipeline_parallel_config", "any", None),
        ("sharding_parallel_config", "any", None),
        ("sharding_comm_buffer_size_MB", "whole", None),
        ("use_sp_callback", "flag", False),
        ("fuse_sequence_parallel_allreduce", "flag", False),
        ("disable_pipeline_warmup", "flag", False),
        ("enable_mtp_magic_send", "flag", False),
    ),
    *without(
        "part of tensor parallelism: activations between its layers may be split, with the same result; off in ERNIEKit too "
        "when `tensor_parallel_degree` is 1",
        ("sequence_parallel", "flag", True),
    ),
    *without(
        STAGES,
        ("pp_seg_method", "any", None),
        ("virtual_pp_degree", "whole", 1),
        ("add_tail_layers", "whole", 0),
        ("pp_need_data", "flag", False),
        ("pp_need_data_degree", "whole", 0),
    ),
    *without("every rank reads the same data", ("same_data", "flag", None)),
)

FP8: tuple[Key, ...] = without(
    "a setting of the quantizer that `compute_type: fp8` names; without it, nothing",
    ("apply_hadamard", "flag", True),
    ("hadamard_block_size", "whole", 32),
    ("quant_input_grad", "flag", False),
    ("quant_weight_grad", "flag", False),
    ("apply_online_actscale_step", "whole", 200),
    ("actscale_moving_rate", "number", 0.01),
    ("fp8_format_type", "text", "hybrid"),
    ("use_fp8", "flag", False),
    ("fp8_force_clear_state", "flag", False),
    ("enable_fp8_quantize_analysis", "flag", False),
)

GENERATION: tuple[Key, ...] = (
    *without("`ernie generate` and `ernie chat`: --max-new-tokens", ("max_new_tokens", "whole", 1024)),
    *without("`ernie generate` and `ernie chat`: --temperature", ("temperature", "number", 0.95)),
    *without("`ernie generate` and `ernie chat`: --top-p", ("top_p", "number", 0.7)),
    *without("`ernie generate` and `ernie chat`: --repetition-penalty", ("repetition_penalty", "number", 1.0)),
    *without(
        "`ernie generate --stream`; `ernie chat` always does", ("stream", "flag", True), ("stream_options", "any", None)
    ),
    *without(
        "about answers of `ernie generate` and `ernie chat`, which read it from generation_config.json",
        ("frequency_penalty", "number", 0.0),
        ("presence_penalty", "number", 0.0),
        ("min_tokens", "whole", 0),
    ),
    *without(
        "about answers: the chat template `thinking` decides (`model.template`)", ("enable_thinking", "flag", False)
    ),
)

SERVING: tuple[Key, ...] = without(
    SERVER,
    ("host", "text", "127.0.0.1"),
    ("port", "whole", 8188),
    ("metrics_port", "whole", 8001),
    ("engine_worker_queue_port", "whole", 8002),
    ("max_model_len", "whole", 2048),
    ("max_num_seqs", "whole", 8),
    ("use_warmup", "whole", 0),
    ("gpu_memory_utilization", "number", 0.9),
    ("quantization", "text", None),
    ("reasoning_parser", "text", "ernie-45-vl"),
    ("max_num_batched_tokens", "whole", 384),
    ("block_size", "whole", 64),
    ("kv_cache_ratio", "number", 0.75),
    ("load_choices", "text", None),
    ("tool_call_parser", "text", None),
    ("server_tp_degree", "whole", 1),
)

EXPORT: tuple[Key, ...] = (
    *without(
        "`ernie merge` and `ernie export` write one file or as many as their format has",
        ("max_shard_size", "number", 5),
    ),
    *without("`ernie merge` and `ernie export` always write the tokenizer", ("copy_tokenizer", "flag", True)),
    *without("`ernie merge ADAPTER --base DIR --out DIR` merges an adapter", ("mergekit_task_config", "any", None)),
    *without(HUB, ("hf_hub_id", "text", None)),
)

KEYS: tuple[Key, ...] = (*PARALLEL, *FP8, *GENERATION, *SERVING, *EXPORT)
