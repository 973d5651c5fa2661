"""The whole table: every ERNIEKit key that is known, by name. Nothing else lists them."""

from __future__ import annotations

from collections.abc import Mapping

from erniecore_key_tables import Key, KeyTable

from erniecore_erniekit import keys_data, keys_model, keys_other, keys_training

#: heading -> keys, in the order of the reference
GROUPS: Mapping[str, tuple[Key, ...]] = {
    "Model and stage": keys_model.WHICH,
    "Adapter": keys_model.ADAPTER,
    "Routers and further predictions": keys_model.ROUTERS,
    "How layers are computed": keys_model.COMPUTE,
    "Data sources": keys_data.SOURCES,
    "Rows and packing": keys_data.ROWS,
    "Run": keys_training.RUN,
    "Steps, evaluation and checkpoints": keys_training.STEPS,
    "Optimizer and schedule": keys_training.OPTIMIZER,
    "Precision and quantization": keys_training.PRECISION,
    "Preference losses": keys_training.PAIRS,
    "Many devices": keys_other.PARALLEL,
    "FP8 training": keys_other.FP8,
    "Answers": keys_other.GENERATION,
    "Server": keys_other.SERVING,
    "Export": keys_other.EXPORT,
    "Sampling of tasks": keys_data.READERS,
    "Images and videos": keys_data.VISION,
}

#: A file with one of these at its top, and no section of ours, may be ERNIEKit's.
TELLING = frozenset(
    (
        "model_name_or_path", "stage", "fine_tuning", "lora_rank", "train_dataset_path", "train_dataset_type",
        "eval_dataset_path", "do_train", "do_eval", "output_dir", "compute_type", "num_train_epochs", "lr_scheduler_type",
        "per_device_train_batch_size", "gradient_accumulation_steps", "max_model_len", "tensor_parallel_degree",
    )
)  # fmt: skip


TABLE = KeyTable("ERNIEKit", "1.3", GROUPS, TELLING, "ERNIEKit has no such key and ignores it")
KEYS = TABLE.keys
