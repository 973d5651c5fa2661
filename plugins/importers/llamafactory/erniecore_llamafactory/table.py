"""The whole table: every argument that LLaMA-Factory's training files can have, by name. Nothing else lists them."""

from __future__ import annotations

from collections.abc import Mapping

from erniecore_key_tables import Key, KeyTable

from erniecore_llamafactory import keys_data, keys_model, keys_other, keys_training

#: heading -> keys, in the order of the reference
GROUPS: Mapping[str, tuple[Key, ...]] = {
    "Model": keys_model.WHICH,
    "Adapter": keys_model.ADAPTER,
    "Quantization": keys_model.QUANTIZATION,
    "Precision, kernels and recomputation": keys_model.COMPUTE,
    "Data sets": keys_data.SOURCES,
    "Samples and packing": keys_data.ROWS,
    "Images, videos and sounds": keys_data.VISION,
    "Run": keys_training.RUN,
    "Steps, evaluation and checkpoints": keys_training.STEPS,
    "Optimizer, schedule and loss": keys_training.OPTIMIZER,
    "Preferences and rewards": keys_training.PREFERENCES,
    "Several devices": keys_training.PARALLEL,
    "Completions": keys_other.GENERATION,
    "Servers": keys_other.SERVING,
    "Export": keys_other.EXPORT,
    "Profiler": keys_other.PROFILE_KEYS,
    "Benchmarks": keys_other.BENCHMARKS,
}

#: A file with one of these at its top, and no section of ours, may be LLaMA-Factory's. Other toolkits have none of them:
#: a file whose keys several toolkits have is left to those.
TELLING = frozenset(
    (
        "finetuning_type", "template", "dataset", "dataset_dir", "cutoff_len", "lora_target", "pref_loss", "pref_beta",
        "adapter_name_or_path", "quantization_bit", "infer_backend", "export_dir", "neat_packing",
    )
)  # fmt: skip

TABLE = KeyTable("LLaMA-Factory", "0.9.5", GROUPS, TELLING, "LLaMA-Factory has no such argument")
