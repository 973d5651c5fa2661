"""Tasks of lm-evaluation-harness on the model of a run. The tasks are loaded anew each time, so every evaluation draws the same
examples; requests are shared among the ranks, and each rank has all scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from erniecore_generation.generate import generating
from erniecore_generation.kept_samples import KeptSample, keep_samples

from erniecore.api.callback import Evaluation, RunView
from erniecore.api.installation import assemble, load
from erniecore.api.model import ModelBundle
from erniecore_lm_eval import harness
from erniecore_lm_eval.command import LENGTH, sample_row
from erniecore_lm_eval.config import PREFIX, Config
from erniecore_lm_eval.kept import KeptResults
from erniecore_lm_eval.model import HarnessModel, Share


def evaluate(run: RunView, config: Config, step: int) -> Evaluation:
    """The scores as metrics ``lm-eval/TASK/METRIC``, with the filter behind where a task has several.

    Raises:
        UsageError, DataError: tasks that are not there, or cannot be loaded.
    """
    wanted = harness.Wanted(
        tuple(config.tasks),
        Path(config.include_path) if config.include_path else None,
        config.num_fewshot,
        config.limit,
        config.seed,
        config.chat_template,
        config.system,
        config.multiturn,
        config.gen_kwargs,
        bootstrap_iters=0,
    )
    bundle = _bundle(run)
    room = int(bundle.architecture.get("max_position_embeddings") or LENGTH)
    model = HarnessModel(
        bundle,
        batch_size=config.batch_size,
        max_length=min(room, config.max_length or LENGTH),
        kept=KeptResults(None, ""),
        seed=config.seed,
        share=_share(run),
    )
    # the harness prints, which would break the lines of the run
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()), generating(run.model):
        found = harness.evaluate_tasks(model, harness.load_tasks(wanted), wanted)
    metrics, lower = metrics_of(found)
    rows = sum(len(samples) for samples in found["samples"].values())
    return Evaluation(metrics, lower, examples=rows, samples=_keep(run, config, found["samples"], step))


def metrics_of(found: Mapping[str, Any]) -> tuple[dict[str, float], frozenset[str]]:
    """The scores of tasks and groups by name, and the names of those of which a lower value is better."""
    metrics: dict[str, float] = {}
    lower = set()
    for task, scores in {**found["results"], **found.get("groups", {})}.items():
        for key, value in scores.items():
            label, comma, kind = key.partition(",")
            if not comma or label.endswith("_stderr") or not isinstance(value, int | float):
                continue
            name = f"{PREFIX}{task}/{label}" + ("" if kind == "none" else f"/{kind}")
            metrics[name] = float(value)
            if found.get("higher_is_better", {}).get(task, {}).get(label) is False:
                lower.add(name)
    return metrics, frozenset(lower)


def _bundle(run: RunView) -> ModelBundle:
    """The model of the run as one that was opened from a directory."""
    model: Any = run.model
    plugin = load("model", run.settings.plugins["model"])
    weights = assemble({"model": plugin}).call(plugin, "ernie_state_adapter", architecture=model.architecture)
    return ModelBundle(model, model.architecture, weights, run.tokenizer)


def _share(run: RunView) -> Share:
    """Which requests this rank computes, and how it gets the others' results."""

    def gather(entries: list[Any]) -> list[Any]:
        parts = run.ranks.all_gather_object(entries if run.ranks.counts else [])
        return [entry for part in parts for entry in part]

    return Share(run.parallel_plan.data_rank, run.parallel_plan.data_size, gather)


def _keep(run: RunView, config: Config, samples: Mapping[str, Any], step: int) -> str:
    """Name of the file with the first rows of each task; the main rank adds those of this step."""
    if not config.samples:
        return ""
    name = "lm-eval.jsonl"
    if run.is_main:
        found = []
        for task, rows in samples.items():
            for row in [sample_row(task, row) for row in rows[: config.samples]]:
                asked, answers = row["arguments"], row["filtered_resps"]
                prompt = str(asked[0][0]) if asked and asked[0] else ""
                shown = answers[0] if len(answers) == 1 else answers
                found.append(KeptSample(step, prompt, str(shown), str(row["target"]), row["scores"]))
        keep_samples(run.out / name, found)
    return name
