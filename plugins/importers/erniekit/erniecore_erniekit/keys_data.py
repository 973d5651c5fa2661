"""ERNIEKit's keys about the data: where it is, how it is mixed, packed and read."""

from __future__ import annotations

from erniecore_key_tables import Key, only, part, renamed, without

LEFTOVER = "left over from other programs; ERNIEKit does not use it either"
READER = "for a reader that samples tasks and shots; every row of a source is used here as it is"
IMAGES = "how ERNIEKit prepares images; here the model plugin and its preprocessor_config.json say it"

SOURCES: tuple[Key, ...] = (
    part("train_dataset_path", "list", None, "data.train", "one source per path of the list"),
    part(
        "train_dataset_type",
        "list",
        ["erniekit"],
        "data.train, formats.text.field",
        "format of each source; chatml: messages; with `stage: PT` erniekit: text with `formats.text.field: tgt`",
    ),
    part("train_dataset_prob", "list", ["1.0"], "data.train", "weight of each source, where there are several"),
    part(
        "eval_dataset_path",
        "list",
        None,
        "data.eval",
        "where `do_eval` or `evaluation_strategy` asks for an evaluation",
    ),
    part("eval_dataset_type", "list", ["erniekit"], "data.eval, formats.text.field", "as `train_dataset_type`"),
    part("eval_dataset_prob", "list", ["1.0"], "", "every held-out row is evaluated once"),
    part("text_dataset_path", "list", None, "data.train", "further sources; empty: none"),
    part(
        "text_dataset_prob",
        "list",
        ["1.0"],
        "data.train",
        "weight of each; the share of all is that of `modality_ratio`",
    ),
    part(
        "dataset_name",
        "text",
        "KnowledgeBasedSFTReader",
        "data.train",
        "format of `text_dataset_path`: FunctionCallSFTReader is messages",
    ),
    part("modality_ratio", "text", None, "data.train", "weight of all text against all other sources"),
    part("mix_strategy", "text", "random", "data.mix", "random: weighted; where there are several sources"),
    part(
        "dataset_type",
        "text",
        "iterable",
        "data.train",
        "iterable: rows; pretrain: token files, see `input_dir`; map: an index of ERNIEKit's own, which cannot be read",
    ),
    part("input_dir", "text", None, "data.train", "`0.4 /a 0.6 /b`: token files with weights"),
    part("split", "text", "950,50", "data.eval_fraction", "with `input_dir`: evaluation / (training + evaluation)"),
    *without(
        "rows are read from the original files, and their tokens are cached", ("offline_dataset_path", "text", None)
    ),
    *without(
        "only says how often ERNIEKit shuffles anew: its number of steps is `max_steps`, or comes from the rows. The length "
        "of an epoch is `data.epoch_samples`",
        ("num_samples_each_epoch", "whole", 6000000),
    ),
)

ROWS: tuple[Key, ...] = (
    part("max_seq_len", "whole", 4096, "data.max_seq_len, data.too_long"),
    *without(
        "prompts are cut by whole turns to what `data.max_seq_len` leaves; ERNIEKit's data code does not read it either",
        ("max_prompt_len", "whole", 2048),
    ),
    part(
        "packing",
        "flag",
        True,
        "data.packing",
        "`false`: none; `true`: greedy, or sequential without `greedy_intokens`",
    ),
    part("greedy_intokens", "flag", True, "data.packing", "see `packing`"),
    part("padding", "flag", True, "data.packing", "`false`: padding-free"),
    renamed("buffer_size", "whole", 500, "data.packing_buffer", "samples that greedy packing chooses from"),
    renamed("random_shuffle", "flag", True, "data.shuffle"),
    only(
        "packing_size",
        "whole",
        1,
        1,
        "rows are filled up to `data.max_seq_len`",
        "rows are filled up to `data.max_seq_len`",
    ),
    *without(
        "rows are filled up to `data.max_seq_len` and padded no further than the longest of a batch",
        ("pad_to_max_seqlen", "any", None),
        ("in_tokens_batching", "flag", True),
    ),
    *without("turns are always rendered one by one", ("encode_one_turn", "flag", False)),
    part("use_template", "flag", True, "", "conversations are always rendered; plain text is `method: pt`"),
    *without(LEFTOVER, ("num_comparisons", "whole", 6), ("use_cls", "flag", True)),
    renamed("dataloader_num_workers", "whole", 0, "data.workers", "the result does not depend on it"),
    *without(
        "every rank reads the same files and takes its own batches; nothing depends on how",
        ("distributed_dataloader", "any", 0),
        ("prefetch_factor", "whole", 2),
        ("use_train_part_sharding", "flag", True),
        ("text_use_train_part_sharding", "flag", True),
        ("sampling_wo_replacement_data_resuming", "flag", True),
    ),
)

READERS: tuple[Key, ...] = (
    *without(
        READER,
        ("example_from_same_task_prob", "number", 0.0),
        ("pseudo_sampling_prob", "number", 0.5),
        ("trigger_data_prob", "number", 0.5),
        ("drop_history_with_k", "flag", False),
        ("add_sys_token", "flag", False),
        ("min_shot", "whole", 2),
        ("max_shot", "whole", 8),
    ),
    *without("every random stream comes from `run.seed`", ("factor", "whole", 20)),
)

#: converted by ``convert_media``
MEDIA: tuple[Key, ...] = (
    part("min_pixels", "whole", None, "model.image_min_pixels"),
    part("max_pixels", "whole", None, "model.image_max_pixels"),
    part("video_fps", "number", 2, "model.video_fps"),
    part("video_min_frames", "whole", 16, "model.video_min_frames"),
    part("video_max_frames", "whole", 480, "model.video_max_frames"),
    part("video_target_frames", "whole", -1, "model.video_target_frames", "below 0: by `video_fps`"),
    part("video_frames_sample", "text", "middle", "", "the middle frame of each interval is taken"),
    part("video_min_pixels", "whole", None, "model.video_min_pixels"),
    part("video_max_pixels", "whole", None, "model.video_max_pixels"),
    part("render_timestamp", "flag", False, "model.video_timestamps"),
    part("freeze_config", "text", "", "model.train", "`freeze_vision`, `freeze_lm`; of `fine_tuning: Full`"),
    part("vit_lr_ratio", "number", None, "model.lr_factors", "one factor for the whole tower"),
    part("visual_ld", "number", None, "model.lr_factors", "as `vit_lr_ratio`"),
)

VISION: tuple[Key, ...] = (
    *MEDIA,
    *without(
        IMAGES,
        ("multimodal", "flag", False),
        ("vision_model_name_or_path", "text", None),
        ("vit_second_fwd_batch_size", "whole", None),
        ("modality_interleave", "text", "acc"),
        ("balanced_image_preprocess", "flag", False),
        ("image_token_len", "whole", 64),
        ("im_prefix_length", "whole", 64),
        ("use_pic_id", "flag", True),
        ("prompt_dir", "text", "./"),
        ("variable_resolution", "flag", False),
        ("spatial_conv_size", "whole", 2),
        ("adaptive_max_imgtoken_option", "any", None),
        ("adaptive_max_imgtoken_rate", "any", None),
        ("drop_untrainble_sample", "flag", False),
        ("image_dtype", "text", "uint8"),
        ("one_sample_in_one_seq", "flag", False),
        ("corpus_name", "text", None),
        ("serialize_output", "flag", True),
        ("load_args_from_api", "flag", False),
        ("sft_shift_by_one", "flag", False),
        ("sft_replace_ids", "flag", False),
        ("sft_image_rescale", "flag", False),
        ("sft_image_normalize", "flag", False),
        ("enable_mm", "flag", False),
        ("limit_mm_per_prompt", "any", None),
    ),
    *without(
        "the tokenizer directory's own template is used, or `model.template`",
        ("chat_template", "text", "ernie_vl"),
        ("tokenizer", "text", None),
        ("tokenizer_name", "text", None),
    ),
)

KEYS: tuple[Key, ...] = (*SOURCES, *ROWS, *READERS, *VISION)
