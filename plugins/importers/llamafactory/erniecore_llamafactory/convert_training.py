"""How long, how fast and on how many devices: the arguments of Hugging Face's TrainingArguments, and what LLaMA-Factory adds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from erniecore_key_tables import one_of, trainer_keys

from erniecore.api.files import parse_json, read_json
from erniecore_llamafactory.convert_data import strategy, wants_evaluation
from erniecore_llamafactory.draft import LlamaDraft

SCHEDULES = {
    "linear": "linear",
    "cosine": "cosine",
    "cosine_with_restarts": "cosine-with-restarts",
    "inverse_sqrt": "inverse-sqrt",
    "cosine_with_min_lr": "cosine",
    "polynomial": "polynomial",
    "constant": "constant",
    "constant_with_warmup": "constant-with-warmup",
    "warmup_stable_decay": "wsd",
}


#: metrics of completions that LLaMA-Factory computes
TEXT_METRICS = ("bleu-4", "rouge-1", "rouge-2", "rouge-l")


def run(draft: LlamaDraft) -> None:
    """Convert the keys behind ``run.resume``."""
    trainer_keys.resume(draft)
    if draft.purpose == "train" and not draft.get("do_train"):
        draft.note("hint", "LLaMA-Factory trains nothing without do_train: true; `ernie run` always trains", "do_train")
    draft.drop("`ernie run` trains, `ernie eval` evaluates", "do_train", "do_eval")


def batches(draft: LlamaDraft) -> None:
    """Convert the batch sizes of training and evaluation and the accumulation."""
    draft.carry("per_device_train_batch_size", "train.batch_size", pin=True)
    draft.carry("gradient_accumulation_steps", "train.accumulation")
    if wants_evaluation(draft):
        draft.carry("per_device_eval_batch_size", "eval.batch_size", pin=True)
    draft.drop("there is no evaluation", "per_device_eval_batch_size")


def length(draft: LlamaDraft) -> None:
    """Steps and epochs, and what happens every so many steps."""
    if draft.has("max_steps"):
        draft.set("train.max_steps", max(draft.get("max_steps"), 0), "max_steps")
    draft.carry("num_train_epochs", "train.epochs", pin=True)
    if wants_evaluation(draft):
        name = "eval_strategy" if draft.has("eval_strategy") else "evaluation_strategy"
        _every(draft, strategy(draft), name, "eval_steps", "eval.every")
    draft.drop("there is no evaluation", "eval_strategy", "evaluation_strategy", "eval_steps")
    if draft.has("logging_steps"):
        draft.set("log.every", max(int(draft.get("logging_steps")), 1), "logging_steps")
    if draft.purpose != "train":
        return
    said = str(draft.get("save_strategy")).lower()
    _every(draft, "no" if said == "false" else said, "save_strategy", "save_steps", "checkpoint.every")
    if draft.has("save_total_limit"):
        limit = draft.get("save_total_limit")
        draft.set("checkpoint.keep", max(limit, 2), "save_total_limit")
        if limit < 2:
            text = "2: the newest may turn out damaged, so two are kept"
            draft.note("differs", text, "save_total_limit")
    elif said != "no":
        text = "the newest 3 checkpoints are kept; LLaMA-Factory keeps all of them without it. checkpoint.keep=N"
        draft.note("differs", text, "save_total_limit")
    _best(draft)


def _written(draft: LlamaDraft) -> bool:
    """The callback that evaluates what the model writes, for ``predict_with_generate``; whether there is one."""
    why = ""
    if not draft.get("predict_with_generate"):
        why = "`ernie generate` and `ernie chat` have flags for it"
    elif not (wants_evaluation(draft) and draft.has("eval_dataset")):
        why = "completions are compared with those of `eval_dataset`, and there is none"
    elif draft.get("stage") != "sft":
        why = "only `stage: sft` reads it"
    if why:
        draft.drop(why, "predict_with_generate", "max_new_tokens")
        return False
    draft.set("callbacks.eval-generate.metrics", ["exact-match"], "predict_with_generate")
    draft.carry("max_new_tokens", "callbacks.eval-generate.max_new_tokens", pin=True)
    text = "exact answers of greedy completions, in place of BLEU and ROUGE of sampled ones"
    draft.note("differs", text, "predict_with_generate")
    return True


def _best(draft: LlamaDraft) -> None:
    """``eval.best`` and ``eval.patience``: the model of the best evaluation, and when evaluations no longer get better."""
    names, written = ("metric_for_best_model", "greater_is_better"), _written(draft)
    if not (draft.get("load_best_model_at_end") or draft.has("early_stopping_steps")):
        draft.drop("only with `load_best_model_at_end` or `early_stopping_steps`", *names)
        return
    if not wants_evaluation(draft):
        draft.drop("there is no evaluation", "load_best_model_at_end", "early_stopping_steps", *names)
        return
    metric = str(draft.get("metric_for_best_model") or "loss").removeprefix("eval_").removeprefix("predict_")
    if metric in TEXT_METRICS:
        if not written:
            draft.fault("metric_for_best_model", "needs predict_with_generate, stage sft and an eval_dataset")
            return
        metric = "generate/exact-match"
        draft.note("differs", f"{metric} chooses the best step, in place of BLEU or ROUGE", "metric_for_best_model")
    draft.set("eval.best", metric, "load_best_model_at_end", "metric_for_best_model")
    draft.carry("greater_is_better", "eval.greater_is_better")
    draft.carry("early_stopping_steps", "eval.patience")


def _every(draft: LlamaDraft, kind: str, name: str, steps: str, new: str) -> None:
    """Steps between two events; a number below 1 is a share of all steps, an epoch is as long as the data is."""
    total, epochs = draft.get("max_steps"), float(draft.get("num_train_epochs"))
    if kind not in ("no", "steps", "epoch", "best"):
        draft.fault(name, "must be no, steps or epoch")
        return
    number = float(draft.get(steps) or draft.get("logging_steps"))
    found = int(number)
    if kind == "steps" and number < 1:
        found = max(int(total * number), 1) if total > 0 else 0
    elif kind == "epoch":
        found = max(int(total / epochs), 1) if total > 0 else 0
    elif kind in ("no", "best"):
        found = 0
    if not found and kind != "no":
        text = f"only at the end: steps are known once the data is read; then give {new}=N"
        draft.note("differs", text, name if kind != "steps" else steps)
    draft.set(new, found, *((name, steps) if kind == "steps" else (name,)))
    draft.drop(f"`{name}: {kind}` does not read it", steps)


def schedule(draft: LlamaDraft) -> None:
    """``train.schedule`` and what belongs to it."""
    old, said = "lr_scheduler_type", str(draft.get("lr_scheduler_type"))
    try:
        name = one_of(said, SCHEDULES)
    except ValueError as error:
        draft.fault(old, str(error))
        return
    if draft.has(old) or draft.purpose == "train":
        draft.set("train.schedule", name, old)
    given = draft.get("lr_scheduler_kwargs") or {}
    if isinstance(given, str):
        try:
            given = parse_json(given)
        except ValueError:
            given = None
    if not isinstance(given, Mapping):
        draft.fault("lr_scheduler_kwargs", "must be an object")
        return
    _details(draft, said, given)
    if name == "constant":
        draft.drop("`constant` has no warm-up", "warmup_steps", "warmup_ratio")
        return
    if draft.has("warmup_steps"):
        steps = float(draft.get("warmup_steps"))
        share = 0 < steps < 1
        draft.set(
            "train.warmup_ratio" if share else "train.warmup_steps", steps if share else int(steps), "warmup_steps"
        )
    draft.carry("warmup_ratio", "train.warmup_ratio")


def _details(draft: LlamaDraft, said: str, given: Mapping[str, Any]) -> None:
    """What ``lr_scheduler_kwargs`` adds to a schedule."""
    old, rate = "lr_scheduler_kwargs", float(draft.get("learning_rate"))
    lowest = {"min_lr": 1.0, "lr_end": 1.0, "min_lr_rate": rate, "min_lr_ratio": rate}
    known = {"num_decay_steps": "train.decay_steps", "power": "train.power"}
    if said == "cosine_with_restarts" and given.get("num_cycles") in range(1, 1_000_000):  # only whole cycles
        known["num_cycles"] = "train.cycles"
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or (name not in lowest and name not in known):
            text = f"{name} of the schedule is not read"
            draft.note("differs", text, old)
        elif name in lowest:
            draft.set("train.min_lr", value * lowest[name], old)
        else:
            draft.set(known[name], int(value) if name == "num_cycles" else value, old)
    if said == "polynomial" and "lr_end" not in given:
        draft.set("train.min_lr", 1e-7, "lr_scheduler_type")
    draft.drop(f"`{said}` has no such settings", old)


class Zero(NamedTuple):
    """What a DeepSpeed configuration asks for. ``offload``: of the optimizer's state."""

    stage: int
    offload: bool


def zero_of(value: Any) -> Zero:
    """Of a configuration, or of the name of a file with one: ``ds_z3_offload_config.json``."""
    if isinstance(value, str):
        try:
            value = read_json(Path(value))
        except (OSError, ValueError):
            base = Path(str(value)).name
            stage = next((n for n in (3, 2, 1) if f"z{n}" in base or f"zero{n}" in base), 0)
            return Zero(stage, "offload" in base)
    section = value.get("zero_optimization") if isinstance(value, Mapping) else None
    section = section if isinstance(section, Mapping) else {}
    stage = section.get("stage", 0)
    return Zero(stage if isinstance(stage, int) else 0, bool(section.get("offload_optimizer")))


def parallel(draft: LlamaDraft) -> None:
    """ZeRO and FSDP: they say how to share, but not among how many devices."""
    if draft.has("deepspeed"):
        zero = zero_of(draft.get("deepspeed"))
        if zero.offload:
            draft.set("optimizer.offload", True, "deepspeed")
        level = f" parallel.sharding_stage={zero.stage}" if zero.stage else ""
        degree = "sharding" if zero.stage else "data"
        text = f"on N devices: --parallel hybrid parallel.{degree}=N{level}; a single one holds everything"
        draft.note("hint", text, "deepspeed")
        draft.drop(text, "deepspeed")
    if draft.has("fsdp"):
        text = "on N devices: --parallel hybrid parallel.sharding=N parallel.sharding_stage=3"
        draft.note("hint", text, "fsdp")
        draft.drop(text, "fsdp")


def device(draft: LlamaDraft) -> None:
    """``device.name``: what the file was converted for; LLaMA-Factory takes what it finds."""
    if draft.around.device != "cpu":
        draft.set("device.name", draft.around.device)
