"""How long, how fast and on how many devices: the keys of ERNIEKit about the run and its optimization."""

from __future__ import annotations

from erniecore_key_tables import Left, one_of, trainer_keys

from erniecore_erniekit import rules
from erniecore_erniekit.convert_model import VISION, compute_type, plugin_of, stage
from erniecore_erniekit.draft import ErniekitDraft as Draft
from erniecore_erniekit.keys_training import EXACT

#: degree -> setting
DEGREES = {
    "tensor_parallel_degree": "tensor",
    "pipeline_parallel_degree": "pipeline",
    "sharding_parallel_degree": "sharding",
    "data_parallel_degree": "data",
    "sep_parallel_degree": "context",
    "context_parallel_degree": "context",
    "expert_parallel_degree": "expert",
}


def run(draft: Draft) -> None:
    """Convert the keys behind ``run.resume`` and callbacks."""
    trainer_keys.resume(draft)
    _callbacks(draft)
    if draft.purpose == "train" and not draft.has("do_train"):
        draft.note("hint", "ERNIEKit trains nothing without do_train: True; `ernie run` always trains", "do_train")
    draft.drop("`ernie run` trains, `ernie eval` evaluates", "do_train")


def _callbacks(draft: Draft) -> None:
    names = draft.get("report_to") or []
    if "visualdl" in names or "all" in names:
        directory = str(draft.get("logging_dir") or "").rstrip("/").rpartition("/")[2] or "visualdl"
        draft.set("callbacks.visualdl.directory", directory, "report_to", "logging_dir")
        if draft.has("logging_dir"):
            draft.note("differs", f"curves are in {directory} inside the run directory", "logging_dir")
    draft.drop(
        "curves are in report.html and events.jsonl; for VisualDL: --callback visualdl", "report_to", "logging_dir"
    )


def batches(draft: Draft) -> None:
    """Convert the batch sizes of training and evaluation and the accumulation."""
    overwritten = [o for o in ("per_device_train_batch_size", "per_device_eval_batch_size") if draft.has(o)]
    if draft.has("batch_size"):
        draft.set("train.batch_size", draft.get("batch_size"), "batch_size")
        for old in overwritten:
            if draft.get(old) != draft.get("batch_size"):
                draft.note("effective", f"{draft.get('batch_size')}: batch_size overwrites it", old)
        draft.drop("`batch_size` overwrites it", *overwritten)
    else:
        for old in overwritten:
            draft.set("train.batch_size" if "train" in old else "eval.batch_size", draft.get(old), old)
            text = f"{draft.get(old)}, as written; ERNIEKit 1.3 overwrites it with batch_size, whose default is 1"
            draft.note("effective", text, old)
    steps = draft.get("gradient_accumulation_steps")
    if steps <= 0:
        draft.fault("gradient_accumulation_steps", "chosen from the data; give a number, 1 or more")
    else:
        draft.carry("gradient_accumulation_steps", "train.accumulation")
    if steps > 1 and draft.purpose == "train" and stage(draft) != "DPO" and not draft.get("token_balance_loss"):
        text = "every loss token of a step counts the same; ERNIEKit takes the mean of each micro-batch, then of those"
        draft.note("differs", text, "gradient_accumulation_steps")
    if draft.get("pipeline_parallel_degree") > 1 and draft.has("batch_size") and steps > 0:
        draft.set("eval.batch_size", draft.get("batch_size") * steps, "batch_size")


def length(draft: Draft) -> None:
    """Steps and epochs, and what happens every so many steps."""
    steps, epochs = draft.get("max_steps"), float(draft.get("num_train_epochs"))
    if draft.has("max_steps"):
        draft.set("train.max_steps", max(steps, 0), "max_steps")
    if epochs <= 0:
        if steps <= 0:
            draft.fault("num_train_epochs", "must be above 0, or max_steps must be")
        draft.drop("`max_steps` decides", "num_train_epochs")
        epochs = 1.0
    draft.carry("num_train_epochs", "train.epochs")
    if wants_evaluation(draft):
        _every(draft, "evaluation_strategy", "eval_steps", "eval.every", epochs)
    else:
        if draft.has("eval_dataset_path"):
            draft.note("effective", "nothing is held out: do_eval is off", "do_eval")
        reason = "there is no evaluation: `do_eval` is off"
        draft.drop(
            reason, "evaluation_strategy", "eval_steps", "max_evaluate_steps", "do_eval", "per_device_eval_batch_size"
        )
    _every(draft, "save_strategy", "save_steps", "checkpoint.every", epochs)
    _keep(draft)


def wants_evaluation(draft: Draft) -> bool:
    """``do_eval``, or a strategy, which switches it on."""
    strategy = _strategy(draft, "evaluation_strategy", "eval_steps")
    named = draft.has("evaluation_strategy") and strategy in ("steps", "epoch")
    return (bool(draft.get("do_eval")) or named) and stage(draft) not in VISION


def _strategy(draft: Draft, old: str, steps: str) -> str:
    """The strategy; where only a number of steps is given, ``steps``. YAML 1.1 reads ``no`` as false."""
    if draft.has(old):
        return str(draft.get(old)).lower()
    return "steps" if draft.has(steps) else "no"


def _every(draft: Draft, strategy: str, steps: str, new: str, epochs: float) -> None:
    kind = _strategy(draft, strategy, steps)
    number = draft.get(steps) or draft.get("logging_steps")  # what the trainer takes where there are none
    try:
        found = rules.every(kind, number, draft.get("max_steps"), epochs)
    except ValueError as error:
        draft.fault(strategy, str(error))
        return
    if found is None:
        text = f"only at the end: steps per epoch are known once the data is read; then give {new}=N"
        draft.note("differs", text, strategy)
    used = (strategy, steps) if kind == "steps" else (strategy,)
    if any(draft.has(old) for old in used):
        draft.set(new, found or 0, *used)
    if kind != "steps" and draft.has(steps):
        meaning = "at the end" if not found else f"{found}"
        draft.note("effective", f"{meaning}: {strategy} is {kind}, so {steps} has no effect", steps, strategy)
        draft.drop(f"`{strategy}: {kind}` does not read it", steps)


def _keep(draft: Draft) -> None:
    if "async_save" in (draft.get("unified_checkpoint_config") or []):
        draft.set("checkpoint.background", True, "unified_checkpoint_config")
    draft.drop(EXACT, "unified_checkpoint_config")
    if not draft.has("save_total_limit"):
        if draft.settings.get("checkpoint.every") and draft.purpose == "train":
            text = "the newest 3 checkpoints are kept; ERNIEKit keeps all of them without this key. checkpoint.keep=N"
            draft.note("differs", text, "save_total_limit")
        return
    limit = draft.get("save_total_limit")
    draft.set("checkpoint.keep", max(limit, 2), "save_total_limit")
    if limit < 2:
        draft.note("differs", "2: the newest may turn out damaged, so two are kept", "save_total_limit")


def optimizer(draft: Draft) -> None:
    """Convert learning rates and weight decay."""
    draft.carry("learning_rate", "train.learning_rate", pin=True)
    draft.carry("weight_decay", "train.weight_decay", pin=True)
    draft.carry("layerwise_lr_decay_bound", "train.layer_lr_decay")
    if draft.get("layerwise_lr_decay_bound") < 1:
        text = "layer i of n learns with low + (1 - low) (i+1)/(n+1); ERNIEKit divides by n+2, so that its last layer learns less"
        draft.note("differs", text, "layerwise_lr_decay_bound")
    name = str(draft.get("optim"))
    if name not in ("adamw", "adamw_custom", "adamw_torch", "adamw_mini"):
        draft.fault("optim", "must be adamw, adamw_custom or adamw_mini")
    elif draft.has("optim"):
        draft.set("optimizer.name", "adamw", "optim")
        if name == "adamw_mini":
            draft.note("differs", "AdamW with all moments; adamw_mini keeps fewer", "optim")
    low = bool(draft.get("use_lowprecision_moment"))
    if compute_type(draft) == "fp8" and not low:
        draft.set("optimizer.moments", "bfloat16", "compute_type")
        draft.note("effective", "true: compute_type fp8 sets it", "use_lowprecision_moment")
        draft.drop("`compute_type: fp8` sets it", "use_lowprecision_moment")
    elif draft.has("use_lowprecision_moment"):
        draft.set("optimizer.moments", "bfloat16" if low else "float32", "use_lowprecision_moment")


def schedule(draft: Draft) -> None:
    """``train.schedule`` and what belongs to it."""
    old = "lr_scheduler" if draft.has("lr_scheduler") and not draft.has("lr_scheduler_type") else "lr_scheduler_type"
    vision, given = stage(draft) in VISION, str(draft.get(old) or "linear")
    try:
        chosen = rules.schedule(given, draft.get("max_steps"), str(draft.get("decay_function")), cosine_only=vision)
    except ValueError as error:
        draft.fault(old, str(error))
        return
    if draft.has(old) or draft.purpose == "train":
        draft.set("train.schedule", chosen.name, old)
    draft.drop("`lr_scheduler_type` decides", "lr_scheduler")
    if vision and given.partition(":")[0] not in ("cosine", "wsd") and draft.has(old):
        draft.note("effective", f"cosine: the trainer of VL stages does not know {given}", old)
    if chosen.name == "wsd":
        if chosen.decay_steps:
            draft.set("train.decay_steps", chosen.decay_steps, old)
        draft.set("train.decay_shape", chosen.shape or "half-life", "decay_function")
    draft.drop("only with wsd", "decay_function")
    _ends(draft, chosen.name)
    _warmup(draft, chosen.name)


def _ends(draft: Draft, name: str) -> None:
    """The lowest rate: each schedule of ERNIEKit has its own key for it, or none."""
    if name == "polynomial":
        draft.carry("lr_end", "train.min_lr", pin=True)
        draft.carry("power", "train.power")
        reader = "polynomial reads lr_end"
    else:
        reader = f"{name} has no lowest rate"
    if name in ("cosine", "wsd"):
        draft.carry("min_lr", "train.min_lr")
    elif draft.get("min_lr"):
        draft.note("effective", f"no effect: {reader}", "min_lr", "lr_scheduler_type")
    draft.drop(reader, "min_lr")
    draft.drop("only with polynomial", "lr_end", "power")
    steps = draft.get("decay_steps")
    if steps is not None and steps != draft.get("max_steps"):
        text = "the decay ends at the last step; train.max_steps says which that is"
        draft.leave(Left(text, differs=True), "decay_steps")
    draft.drop("the decay ends at the last step", "decay_steps")


def _warmup(draft: Draft, name: str) -> None:
    if name == "constant":
        if draft.get("warmup_steps") or draft.get("warmup_ratio"):
            text = "0: constant has no warm-up; constant_with_warmup has"
            draft.note("effective", text, "warmup_steps", "lr_scheduler_type")
        draft.drop("`constant` has no warm-up", "warmup_steps", "warmup_ratio")
        return
    draft.carry("warmup_steps", "train.warmup_steps")
    draft.carry("warmup_ratio", "train.warmup_ratio")


def recompute(draft: Draft) -> None:
    """Convert the keys behind ``train.recompute``."""
    try:
        how = one_of(str(draft.get("recompute_granularity")), rules.RECOMPUTE)
    except ValueError as error:
        draft.fault("recompute_granularity", str(error))
        return
    on = bool(draft.get("recompute"))
    draft.drop("`recompute` is off", *(() if on else ("recompute_granularity",)))
    if draft.has("recompute"):
        draft.set("train.recompute", how if on else "none", "recompute", *(("recompute_granularity",) if on else ()))


def parallel(draft: Draft) -> None:
    """``parallel.*``: one rank, or the plugin ``hybrid`` with the degrees above 1."""
    degrees = {old: draft.get(old) for old in DEGREES}
    active = {old: n for old, n in degrees.items() if n is not None and n > 1}
    given = [old for old in DEGREES if draft.has(old)]
    if not active:
        if given:
            draft.set("parallel.name", "single", *given)
        draft.drop("one rank holds everything", "sharding", "moe_group")
        return
    draft.set("parallel.name", "hybrid", *given)
    for old, degree in active.items():
        draft.set(f"parallel.{DEGREES[old]}", degree, old)
    try:
        level = rules.sharding_stage(" ".join(draft.get("sharding") or []))
    except ValueError as error:
        draft.fault("sharding", str(error))
        return
    if level:
        draft.set("parallel.sharding_stage", level, "sharding")
    _experts(draft)


def _experts(draft: Draft) -> None:
    group, replicas = str(draft.get("moe_group")), draft.get("data_parallel_degree")
    experts = plugin_of(draft) != "ernie45"
    if experts and group in ("data", "dp") and replicas > 1:
        draft.set("parallel.expert", replicas, "moe_group")
    elif experts and group == "mp" and draft.get("tensor_parallel_degree") > 1:
        draft.drop("parallel.tensor spreads the experts, too", "moe_group")
    else:
        draft.drop("experts stay on one rank", "moe_group")


def device(draft: Draft) -> None:
    """``device.name``: what the file was converted for; ERNIEKit takes what it finds."""
    if draft.around.device != "cpu":
        draft.set("device.name", draft.around.device)
