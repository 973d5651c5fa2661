"""LLaMA-Factory's arguments about other things than training: answers, servers, export, profiles, benchmarks."""

from __future__ import annotations

from erniecore_key_tables import Key, part, without

SERVER = "a server decides: `ernie serve --backend NAME` lists its settings"
MERGE = "`ernie merge` and `ernie export` write one file or as many as their format has, with the tokenizer"
PROFILE = "there is no profiler of PyTorch here"
BENCHMARK = "benchmarks are another program's matter; `ernie eval` gives the loss on rows"

GENERATION: tuple[Key, ...] = (
    part("max_new_tokens", "whole", 1024, "callbacks.eval-generate.max_new_tokens", "with `predict_with_generate`"),
    *without(
        "`ernie generate` and `ernie chat` have flags for it",
        ("do_sample", "flag", True),
        ("temperature", "number", 0.95),
        ("top_p", "number", 0.7),
        ("top_k", "whole", 50),
        ("num_beams", "whole", 1),
        ("max_length", "whole", 1024),
        ("repetition_penalty", "number", 1.0),
        ("length_penalty", "number", 1.0),
        ("skip_special_tokens", "flag", True),
    ),
    *without(
        "`ernie chat` computes here; for a server: `ernie serve`",
        ("infer_backend", "text", "huggingface"),
        ("use_kv_cache", "flag", True),
    ),
)

SERVING: tuple[Key, ...] = (
    *without(
        SERVER,
        ("vllm_maxlen", "whole", 4096),
        ("vllm_gpu_util", "number", 0.7),
        ("vllm_enforce_eager", "flag", False),
        ("vllm_max_lora_rank", "whole", 32),
        ("vllm_config", "any", None),
        ("sglang_maxlen", "whole", 4096),
        ("sglang_mem_fraction", "number", 0.7),
        ("sglang_tp_size", "whole", -1),
        ("sglang_config", "any", None),
        ("sglang_lora_backend", "text", "triton"),
    ),
    *without(
        "experts are computed where the model is",
        ("use_kt", "flag", False),
        ("kt_cpu_activation", "text", None),
        ("kt_weight_path", "text", None),
        ("kt_non_expert_weight_path", "text", None),
        ("kt_expert_checkpoint_path", "text", None),
        ("kt_use_lora_experts", "flag", None),
        ("kt_lora_expert_num", "whole", None),
        ("kt_lora_expert_intermediate_size", "whole", None),
        ("_kt_inference_config", "any", None),
        ("_kt_config_handle", "any", None),
        ("_kt_adapter_artifact_path", "text", None),
    ),
)

EXPORT: tuple[Key, ...] = (
    *without("`ernie merge ADAPTER --base DIR --out DIR`", ("export_dir", "text", None)),
    *without(
        MERGE, ("export_size", "whole", 5), ("export_device", "text", "cpu"), ("export_legacy_format", "flag", False)
    ),
    *without(
        "`ernie quantize DIR --to KIND --out DIR`",
        ("export_quantization_bit", "whole", None),
        ("export_quantization_dataset", "text", None),
        ("export_quantization_nsamples", "whole", 128),
        ("export_quantization_maxlen", "whole", 1024),
    ),
    *without("`ernie export RUN --out DIR --push hf:OWNER/NAME` uploads", ("export_hub_model_id", "text", None)),
)

PROFILE_KEYS: tuple[Key, ...] = (
    *without(
        PROFILE,
        ("enable_torch_profiler", "flag", False),
        ("profiler_output_dir", "text", None),
        ("profiler_wait_steps", "whole", 1),
        ("profiler_warmup_steps", "whole", 1),
        ("profiler_active_steps", "whole", 1),
        ("profiler_repeat", "whole", 1),
        ("profiler_record_shapes", "flag", True),
        ("profiler_profile_memory", "flag", True),
        ("profiler_with_stack", "flag", True),
        ("profile_modules", "text", None),
    ),
)

BENCHMARKS: tuple[Key, ...] = (
    *without(
        BENCHMARK,
        ("task", "text", None),
        ("task_dir", "text", "evaluation"),
        ("batch_size", "whole", 4),
        ("lang", "text", "en"),
        ("n_shot", "whole", 5),
        ("save_dir", "text", None),
    ),
)
