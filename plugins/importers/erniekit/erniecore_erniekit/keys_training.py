"""ERNIEKit's keys about the run and its optimization: steps, rates, precision, evaluation, checkpoints, losses of pairs."""

from __future__ import annotations

from erniecore_key_tables import Key, ignored, only, part, renamed, without

MEMORY = "saves memory in a way that this optimizer does not have; the result is the same"
EXACT = "checkpoints are one format: exact, hashed, written atomically, with everything that a resume needs"
AMP = "`train.precision` is the dtype of weights and products; norms, softmax and losses are computed in float32"


def _at_least_zero(value: float) -> float:
    return max(value, 0.0)


def _steps(value: int) -> int:
    return max(value, 0)


RUN: tuple[Key, ...] = (
    renamed("output_dir", "text", None, "run.out"),
    renamed("seed", "whole", 42, "run.seed"),
    part(
        "overwrite_output_dir",
        "flag",
        False,
        "run.resume",
        "`true`: never (a directory that holds a run is refused, not overwritten)",
    ),
    part("resume_from_checkpoint", "text", None, "run.resume", "`true`: must; a checkpoint directory of erniecore"),
    part("do_train", "flag", False, "", "`ernie run` trains; a file that says `false` belongs to `ernie eval`"),
    part("do_eval", "flag", False, "data.eval", "`false`, and no `evaluation_strategy`: nothing is held out"),
    renamed("logging_steps", "whole", 500, "log.every", convert=lambda v: max(v, 1)),
    part(
        "logging_dir",
        "text",
        None,
        "callbacks.visualdl.directory",
        "with `report_to: visualdl`; curves are in report.html anyway",
    ),
    part("report_to", "list", None, "callbacks.visualdl", "visualdl; other names become nothing"),
    *without(
        "a terminal gets one live line, anything else plain lines",
        ("disable_tqdm", "flag", False),
    ),
    *without(
        "every step is an event in events.jsonl, with loss, gradient norm and tokens per second over all ranks",
        ("enable_global_training_logs", "flag", False),
        ("log_global_grad_norm", "flag", False),
        ("global_logging_interval", "whole", 1),
        ("sft_benchmark", "flag", False),
        ("dpo_benchmark", "flag", False),
    ),
    *without(
        "about the garbage collector and allocator of a Python process on an accelerator; the result is the same",
        ("gc_interval", "whole", 0),
        ("pre_alloc_memory", "number", 0.0),
    ),
)

STEPS: tuple[Key, ...] = (
    part("batch_size", "whole", 1, "train.batch_size, eval.batch_size", "wins over `per_device_*_batch_size`"),
    part("per_device_train_batch_size", "whole", None, "train.batch_size", "where `batch_size` is absent"),
    part("per_device_eval_batch_size", "whole", None, "eval.batch_size", "where `batch_size` is absent"),
    part("gradient_accumulation_steps", "whole", 1, "train.accumulation", "below 0 (from the data): give a number"),
    part("max_steps", "whole", -1, "train.max_steps", "-1: from the epochs"),
    part("num_train_epochs", "number", 1.0, "train.epochs"),
    *without(
        "steps come from the samples, counted exactly",
        ("max_estimate_samples", "whole", 100000),
        ("num_of_gpus", "whole", -1),
    ),
    part("evaluation_strategy", "text", "no", "eval.every", "no: only at the end; epoch: max_steps / num_train_epochs"),
    part("eval_steps", "whole", None, "eval.every", "with `evaluation_strategy: steps`"),
    ignored("eval_iters", "ERNIEKit has no such key and ignores it; `max_evaluate_steps` bounds an evaluation"),
    ignored("eval_batch_size", "ERNIEKit has no such key and ignores it; `batch_size` is that of evaluations, too"),
    renamed("max_evaluate_steps", "whole", -1, "eval.max_steps", "-1: all", _steps),
    part("save_strategy", "text", "no", "checkpoint.every", "no: by the clock; epoch: max_steps / num_train_epochs"),
    part("save_steps", "whole", 500, "checkpoint.every", "with `save_strategy: steps`"),
    part("save_total_limit", "whole", None, "checkpoint.keep", "1: 2, because the newest may be damaged; absent: 3"),
    part(
        "unified_checkpoint_config",
        "words",
        None,
        "checkpoint.background",
        "async_save: checkpoints are written while training goes on; other words become nothing",
    ),
    renamed("use_async_save", "flag", False, "checkpoint.background"),
    *without(
        EXACT,
        ("unified_checkpoint", "flag", True),
        ("disable_ckpt_quant", "flag", False),
        ("ckpt_quant_stage", "text", "O0"),
        ("ignore_save_lr_and_optim", "flag", False),
        ("save_sharded_model", "flag", False),
        ("load_sharded_model", "flag", False),
        ("save_sharding_stage1_model_include_freeze_params", "flag", False),
        ("reshard_save_then_exit", "flag", False),
        ("optim_shard_num", "whole", 1),
    ),
    only(
        "ignore_load_lr_and_optim",
        "flag",
        False,
        False,
        "a resumed run continues exactly",
        "a resumed run continues exactly here; for a new start with trained weights name them as model.path",
    ),
)

OPTIMIZER: tuple[Key, ...] = (
    part("learning_rate", "number", 5e-5, "train.learning_rate"),
    part("weight_decay", "number", 0.0, "train.weight_decay"),
    renamed("adam_beta1", "number", 0.9, "optimizer.beta1"),
    renamed("adam_beta2", "number", 0.999, "optimizer.beta2"),
    renamed("adam_epsilon", "number", 1e-8, "optimizer.epsilon"),
    renamed("max_grad_norm", "number", 1.0, "train.max_grad_norm", "0 and below: off", _at_least_zero),
    part(
        "lr_scheduler_type",
        "text",
        "linear",
        "train.schedule, train.decay_steps",
        "wsd:N: constant until step N; VL stages: cosine or wsd",
    ),
    part("lr_scheduler", "text", None, "train.schedule, train.decay_steps", "another name of `lr_scheduler_type`"),
    part("decay_function", "text", "half_life", "train.decay_shape", "with `wsd`"),
    part("decay_steps", "whole", None, "", "the decay ends at the last step"),
    part("warmup_ratio", "number", 0.0, "train.warmup_ratio", "the schedule `constant` has none"),
    part("warmup_steps", "whole", 0, "train.warmup_steps", "the schedule `constant` has none"),
    part("min_lr", "number", 0.0, "train.min_lr", "with cosine and wsd; other schedules do not read it"),
    part("lr_end", "number", 1e-7, "train.min_lr", "with polynomial"),
    part("power", "number", 1.0, "train.power", "with polynomial"),
    only("num_cycles", "number", 0.5, 0.5, "half a wave, as here", "cosine is half a wave here"),
    part("layerwise_lr_decay_bound", "number", 1.0, "train.layer_lr_decay"),
    *without(
        "has no effect in ERNIEKit either: its pattern matches layer 0 only, which has no router",
        ("moe_gate_lr_ratio", "number", None),
    ),
    part("optim", "text", "adamw", "optimizer.name", "adamw, adamw_custom: adamw"),
    part("use_lowprecision_moment", "flag", False, "optimizer.moments", "`true`: bfloat16"),
    *without(
        "saves memory, the result is the same; `optimizer.offload` does so on devices with memory of their own",
        ("offload_optim", "flag", False),
        ("tensorwise_offload_optimizer", "flag", False),
    ),
    *without(MEMORY, ("release_grads", "flag", False)),
    only(
        "adaptive_norm_clip",
        "flag",
        False,
        False,
        "gradients are clipped to `train.max_grad_norm`",
        "gradients are clipped to `train.max_grad_norm` here",
    ),
    only(
        "token_balance_loss",
        "flag",
        False,
        True,
        "every loss token of a step counts the same, as here",
        "every loss token of a step counts the same here, not every micro-batch",
    ),
    only("train_moe_only", "flag", False, False, "everything is trained", "parts of a model cannot be frozen here"),
    only("train_emb_only", "flag", False, False, "everything is trained", "parts of a model cannot be frozen here"),
    only("moe_dropout_prob", "number", 0.0, 0.0, "there is no dropout", "models have no dropout"),
)

PRECISION: tuple[Key, ...] = (
    part("compute_type", "text", "bf16", "train.precision, quantizer.name", "wins over every other key of precision"),
    part("weight_quantize_algo", "text", None, "quantizer.name", "where `compute_type` is absent"),
    part("bf16", "flag", False, "train.precision", "`compute_type` decides"),
    part("fp16", "flag", False, "train.precision", "`compute_type` decides"),
    *without(
        AMP,
        ("amp_custom_white_list", "any", None),
        ("amp_custom_black_list", "any", None),
    ),
    *without(
        "there is no loss scaling: bfloat16 and float32 need none, float16 is refused",
        ("scale_loss", "number", 32768),
    ),
    part("fp16_opt_level", "text", "O1", "", "O2, always: weights in `train.precision` with float32 masters"),
    part(
        "amp_master_grad",
        "flag",
        False,
        "",
        "gradients have the dtype of their weights; the optimizer works in float32",
    ),
)

PAIRS: tuple[Key, ...] = (
    part(
        "loss_type",
        "text",
        "sigmoid",
        "method.name",
        "sigmoid: dpo; hinge, ipo, simpo, dpop, orpo as they are; kto_pair: kto-pair; sppo_hard: sppo; nca_pair: nca",
    ),
    part("beta", "number", 0.1, "method.beta", "orpo has no beta in ERNIEKit: its weight is `pref_loss_ratio`"),
    part("label_smoothing", "number", 0.0, "method.label_smoothing", "dpo and simpo"),
    part("normalize_logps", "flag", True, "method.length_normalization", "`true`: balanced; ipo: mean, always"),
    part(
        "offset_alpha",
        "number",
        0.0,
        "method.offset_alpha",
        "has no effect in ERNIEKit, which reads no margin; it becomes 0",
    ),
    part("simpo_gamma", "number", 0.5, "method.gamma", "simpo"),
    part("dpop_lambda", "number", 50.0, "method.penalty, method.penalty_outside", "dpop"),
    part("pref_loss_ratio", "number", 1.0, "method.sft_weight", "only the ratio to `sft_loss_ratio` matters"),
    part("sft_loss_ratio", "number", 0.0, "method.sft_weight", "sft_loss_ratio / pref_loss_ratio; orpo: 1"),
    part("mask_out_eos_token", "flag", True, "", "the end token of an answer counts, as with `false`"),
    part("reference_free", "flag", False, "method.reference_free", "orpo and simpo have no reference"),
    part(
        "ref_model_update_steps",
        "whole",
        -1,
        "method.reference_update_steps",
        "-1: never; with LoRA it has no effect in ERNIEKit",
    ),
)

KEYS: tuple[Key, ...] = (*RUN, *STEPS, *OPTIMIZER, *PRECISION, *PAIRS)
