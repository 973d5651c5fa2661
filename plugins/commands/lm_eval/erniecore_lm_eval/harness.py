"""Runs tasks of lm-evaluation-harness offline: finds them, loads their data, and makes the report of their results."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.api import DataError, ErnieError, UsageError, shorten
from erniecore.api.command import did_you_mean
from erniecore_lm_eval.task_files import check_task_file, check_task_files, sandbox_templates

if TYPE_CHECKING:
    from erniecore_lm_eval.model import HarnessModel

#: what the environment of an evaluation has: nothing is fetched
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_EVALUATE_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is evaluated.

    Attributes:
        tasks: names of tasks, groups and tags, or YAML files. include_path: directory with task files.
        num_fewshot: examples in each prompt; None: as the task has it. limit: documents per task; 0: all.
        gen_kwargs: settings of generation over those of the tasks.
        allow_code: task files may run Python.
    """

    tasks: tuple[str, ...]
    include_path: Path | None = None
    num_fewshot: int | None = None
    limit: int = 0
    seed: int = 0
    chat_template: bool = False
    system: str = ""
    fewshot_as_multiturn: bool = True
    gen_kwargs: Mapping[str, Any] | None = None
    bootstrap_iters: int = 1000
    allow_code: bool = False


def load_tasks(wanted: Wanted) -> Any:
    """The tasks with their data, ready for :func:`evaluate_tasks`; needs no model.

    Raises:
        UsageError: unknown names, files that would run code. DataError: a task file or a data set that cannot be loaded.
    """
    os.environ.update(OFFLINE)  # read when the libraries are imported
    if not wanted.allow_code:
        if wanted.include_path is not None:
            check_task_files(wanted.include_path)
        for name in wanted.tasks:
            if name.endswith((".yaml", ".yml")) and Path(name).is_file():
                check_task_file(Path(name).resolve())
    for name in ("lm_eval", "lm-eval", "datasets"):
        logging.getLogger(name).setLevel(logging.ERROR)
    import datasets

    datasets.disable_progress_bars()
    manager = _manager(wanted)
    if not wanted.allow_code:
        sandbox_templates()
    with _explained("a task cannot be loaded", ", ".join(wanted.tasks)):
        loaded = manager.load(list(wanted.tasks))
    for task in loaded["tasks"].values():
        if task.get_config("output_type") == "generate_until" and wanted.gen_kwargs:
            task.set_config(key="generation_kwargs", value=dict(wanted.gen_kwargs), update=True)
        given = task.get_config("num_fewshot")
        if given != 0 and (wanted.num_fewshot is not None or given is None):
            task.set_config(key="num_fewshot", value=wanted.num_fewshot or 0)
        task.set_fewshot_seed(seed=wanted.seed)
    return loaded


def _manager(wanted: Wanted) -> Any:
    """The index of tasks; those of the harness are indexed only where they are needed."""
    from lm_eval.tasks import TaskManager

    include = str(wanted.include_path) if wanted.include_path is not None else None
    manager = TaskManager(include_path=include, include_defaults=False)
    names = [name for name in wanted.tasks if not name.endswith((".yaml", ".yml"))]
    if all(name in manager.task_index for name in names):
        return manager
    manager = TaskManager(include_path=include)
    for name in names:
        if name not in manager.task_index:
            fix = did_you_mean(name, manager.all_tasks, "`lm-eval ls tasks` lists those of the harness")
            raise UsageError("no such task", where="--tasks", found=shorten(name), fix=fix)
    return manager


@contextlib.contextmanager
def _explained(message: str, where: str) -> Iterator[None]:
    """The errors of the harness and of `datasets`, whose types are many, as ones that say what to do."""
    try:
        yield
    except (ErnieError, KeyboardInterrupt):
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        offline = any(word in text for word in ("offline", "Offline", "Hub", "Connection"))
        fix = (
            "nothing is fetched: put the data set into the cache of `datasets`, or name local files "
            "(dataset_path: json, dataset_kwargs: {data_files: …}) in a task file of yours (--include-path)"
            if offline
            else "see the task's file"
        )
        raise DataError(message, where=where, found=shorten(f"{type(error).__name__}: {text}", 300), fix=fix) from error


def evaluate_tasks(model: HarnessModel, loaded: Any, wanted: Wanted) -> dict[str, Any]:
    """Scores and samples: ``results``, ``groups``, ``n-samples``, ``samples`` as the harness has them, and ``tasks``.

    Raises:
        DataError: a row that its task cannot use. ErnieError: what the model refuses.
    """
    from lm_eval.evaluator import evaluate

    with _explained("a task cannot be evaluated", ", ".join(loaded["tasks"])):
        found: dict[str, Any] = evaluate(
            lm=model,
            task_dict=loaded,
            limit=wanted.limit or None,
            bootstrap_iters=wanted.bootstrap_iters,
            log_samples=True,
            system_instruction=wanted.system or None,
            apply_chat_template=wanted.chat_template,
            fewshot_as_multiturn=wanted.fewshot_as_multiturn,
            confirm_run_unsafe_code=wanted.allow_code,
        )
    samples = found.get("samples", {})
    facts = {name: _facts(task, samples.get(name, []), model) for name, task in loaded["tasks"].items()}
    keys = ("results", "groups", "group_subtasks", "versions", "n-shot", "higher_is_better", "n-samples")
    return {**{key: found[key] for key in keys if key in found}, "tasks": facts, "samples": samples}


def _facts(task: Any, samples: Sequence[Mapping[str, Any]], model: HarnessModel) -> dict[str, Any]:
    """Version and hashes of one task: its settings, and the rows with the prompts that were made of them."""
    settings = json.dumps(task.dump_config(), sort_keys=True, default=str)
    rows = sorted((s["doc_id"], s["doc_hash"], s["prompt_hash"], s["target_hash"]) for s in samples)
    report = model.reports.get(task.task_name)
    return {
        "version": task.VERSION,
        "config_sha256": hashlib.sha256(settings.encode()).hexdigest(),
        "samples_sha256": hashlib.sha256(json.dumps(rows).encode()).hexdigest(),
        **(asdict(report) if report is not None else {}),
    }


def versions() -> dict[str, str]:
    """What computed the scores."""
    return {name: version(name) for name in ("erniecore", "erniecore-lm-eval", "lm-eval", "datasets")}
