"""LLaMA-Factory's arguments about the data: data sets, how they are mixed, cut and packed."""

from __future__ import annotations

from erniecore_key_tables import Key, only, part, renamed, without

CACHED = "rows are read from their files, and their tokens are cached (`data.cache`)"
IMAGES = "of other models than ERNIE's"

SOURCES: tuple[Key, ...] = (
    part(
        "dataset", "list", None, "data.train, formats", "names in `dataset_info.json`: file, format and columns of each"
    ),
    part("eval_dataset", "list", None, "data.eval", "as `dataset`"),
    part("dataset_dir", "text", "data", "data.train, data.eval", "where `dataset_info.json` and the files are"),
    part("val_size", "number", 0.0, "data.eval_fraction", "below 1; a number of rows cannot be said"),
    part("mix_strategy", "text", "concat", "data.mix", "interleave_once: concat; where there are several sources"),
    part("interleave_probs", "list", None, "data.train", "weight of each source, where they are interleaved"),
    part("max_samples", "whole", None, "", "every row is used: cut the files instead"),
    part("media_dir", "text", None, "model.media_roots", "of models that read images"),
    *without(
        CACHED,
        ("streaming", "flag", False),
        ("buffer_size", "whole", 16384),
        ("overwrite_cache", "flag", False),
        ("preprocessing_batch_size", "whole", 1000),
        ("tokenized_path", "text", None),
        ("data_shared_file_system", "flag", False),
        ("download_mode", "text", "reuse_dataset_if_exists"),
    ),
    renamed("preprocessing_num_workers", "whole", None, "data.workers", "the result does not depend on it"),
    *without(
        "batches are made of tokens that are there already; nothing depends on how",
        ("dataloader_num_workers", "whole", 0),
        ("dataloader_prefetch_factor", "whole", None),
        ("dataloader_pin_memory", "flag", True),
        ("dataloader_persistent_workers", "flag", False),
        ("dispatch_batches", "flag", None),
        ("split_batches", "flag", None),
        ("accelerator_config", "any", None),
    ),
    *without(
        "samples hold what their method needs",
        ("remove_unused_columns", "flag", True),
        ("label_names", "list", None),
        ("past_index", "whole", -1),
        ("length_column_name", "text", "length"),
        ("sortish_sampler", "flag", False),
    ),
)

ROWS: tuple[Key, ...] = (
    part("cutoff_len", "whole", 2048, "data.max_seq_len"),
    part(
        "packing",
        "flag",
        None,
        "data.packing",
        "`true`: greedy, `stage: pt`: sequential; `false`: none. Absent: only for `stage: pt`",
    ),
    part("neat_packing", "flag", False, "data.packing", "packed samples never see each other, always"),
    part("disable_shuffling", "flag", False, "data.shuffle"),
    part("template", "text", None, "", "the chat template is that of the model directory, or `model.template`"),
    part("train_on_prompt", "flag", False, "", "the turns of the assistant are learned, nothing else"),
    part(
        "mask_history",
        "flag",
        False,
        "",
        "every turn of the assistant is learned; `label` of a row leaves single ones out",
    ),
    part("default_system", "text", None, "", "write it into the rows as `system`"),
    *without(
        "the chat template decides, see `model.template`",
        ("tool_format", "text", None),
        ("enable_thinking", "flag", True),
        ("preserve_thinking", "flag", False),
    ),
    only("ignore_pad_token_for_loss", "flag", True, True, "padding is never learned", "padding is never learned"),
    only(
        "group_by_length", "flag", False, False, "rows are packed, or come in random order", "rows come in random order"
    ),
    only("dataloader_drop_last", "flag", False, False, "the last batch counts", "the last batch of an epoch counts"),
)

#: converted by ``convert_media``
MEDIA: tuple[Key, ...] = (
    part("image_max_pixels", "whole", 589824, "model.image_max_pixels"),
    part("image_min_pixels", "whole", 1024, "model.image_min_pixels"),
    part("video_max_pixels", "whole", 65536, "model.video_max_pixels"),
    part("video_min_pixels", "whole", 256, "model.video_min_pixels"),
    part("video_fps", "number", 2.0, "model.video_fps", "with `model.video_frames: linspace`"),
    part("video_maxlen", "whole", 128, "model.video_max_frames"),
)

VISION: tuple[Key, ...] = (
    *MEDIA,
    *without(
        IMAGES,
        ("image_do_pan_and_scan", "flag", False),
        ("crop_to_patches", "flag", False),
    ),
    *without(
        "sounds are not read; rows that have them are dropped and counted (`data.max_drop`)",
        ("use_audio_in_video", "flag", False),
        ("audio_sampling_rate", "whole", 16000),
    ),
)
