"""``ernie eval``: loss, bits per byte and exact match of a model on data files, by group."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from erniecore_generation import options as generation_options
from erniecore_generation.options import Adapter, Device, Model, Speculative, Temperature, TopP

from erniecore.api import UsageError, counted
from erniecore.api.command import JsonOption, note, opens_models, show_json, show_table
from erniecore.api.method import MethodCapability, MethodConfig

if TYPE_CHECKING:
    from erniecore.api import Plugin
    from erniecore.api.installation import Host
    from erniecore.api.model import ModelBundle
    from erniecore.api.rows import RowStatistics
    from erniecore_eval.scoring import Generated
    from erniecore_eval.suites import Item, Score, ScoreTable

_Format = Annotated[str, typer.Option("--format", metavar="NAME", help="Format of the data.")]
_Method = Annotated[str, typer.Option("--method", metavar="NAME", help="Method whose encoder and loss are used.")]
_Limit = Annotated[
    int,
    typer.Option("--limit", "--max-samples", min=0, metavar="N", help="At most N rows, sampled with --seed; 0: all."),
]
_GroupBy = Annotated[
    str, typer.Option("--group-by", metavar="FIELD", help="Field of the rows [task, if they have it].")
]
_Reference = Annotated[
    Path | None,
    typer.Option(
        "--reference", metavar="DIR", help="Reference model of a preference method; none: a uniform distribution."
    ),
]
_Completions = Annotated[
    Path | None, typer.Option("--completions", metavar="FILE", help="Write each completion as a JSON line.")
]


@opens_models
def evaluate(
    model: Model,
    data: Annotated[list[str], typer.Option("--data", metavar="FILE", help="Data file; may be repeated.")],
    format: _Format = "auto",
    method: _Method = "sft",
    reference: _Reference = None,
    limit: _Limit = 0,
    group_by: _GroupBy = "",
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Rows per batch.")] = 8,
    max_seq_len: Annotated[int, typer.Option("--max-seq-len", min=2, help="Tokens per row.")] = 2048,
    generate: Annotated[bool, typer.Option("--generate", help="Also generate the last message of each row.")] = False,
    completions: _Completions = None,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", min=1, help="Most new tokens per completion.")
    ] = 64,
    temperature: Temperature = None,
    top_p: TopP = None,
    speculative: Speculative = "off",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed of --limit and of sampling.")] = 0,
    adapter: Adapter = None,
    device: Device = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Loss, perplexity and bits per byte over the loss tokens; with --generate also exact match of completions.

    With a preference method (--method dpo): its metrics, such as the fraction of pairs whose chosen response is more likely.
    Rates come with their number of rows and Wilson's 95 % interval.
    """
    if completions is not None and not generate:
        raise UsageError("--completions needs --generate", fix="add --generate, which generates them")
    sampling = generation_options.sampling_from({}, seed, temperature=temperature, top_p=top_p)
    host, plugin = _method(method, reference)
    bundle, _ = generation_options.open_model(model, device, adapter, speculative=speculative)
    limits = {"group_by": group_by, "limit": limit, "seed": seed}
    items, statistics = _items(host, plugin, bundle, data, max_seq_len, default_format=format, **limits)
    from erniecore_eval import scoring
    from erniecore_eval.suites import ScoreTable

    table = ScoreTable()
    objective = _objective(host, plugin, bundle, reference, device)
    scoring.add_losses(table, items, objective, bundle, batch_size)
    if generate:
        how: dict[str, Any] = {"max_new_tokens": max_new_tokens, "batch_size": batch_size, "speculative": speculative}
        generated = scoring.add_completions(
            table, items, bundle, sampling=sampling, on_completion=_keep(completions), **how
        )
        generation_options.note_acceptance(speculative, generated)
    show(table, statistics, _facts(bundle, model, method, seed), as_json=as_json)


def _method(name: str, reference: Path | None) -> tuple[Host, Plugin]:
    """The method plugin. Raises ``UsageError`` where a reference model is missing or not supported."""
    from erniecore.api.installation import assemble, load

    plugin = load("method", name)
    if MethodCapability.REWARDS in plugin.capabilities:
        raise UsageError(
            "this method has no loss on given responses",
            where="--method",
            found=name,
            fix="measure exact match with --method sft --generate; a run scores its validation set (data.eval)",
        )
    compares = MethodCapability.REFERENCE in plugin.capabilities
    if reference is None and compares and not _reference_optional(plugin):
        raise UsageError(
            "this method needs a reference model",
            where="--method",
            found=name,
            fix="name its directory with --reference",
        )
    if reference is not None and not compares:
        raise UsageError("this method takes no reference model", where="--reference", fix="leave it out")
    return assemble({"method": plugin}), plugin


def _reference_optional(plugin: Plugin) -> bool:
    """Whether the method's loss can be computed without a reference model."""
    return issubclass(plugin.Config, MethodConfig) and plugin.Config.reference_optional


def _objective(host: Host, plugin: Plugin, bundle: ModelBundle, reference: Path | None, device: str) -> Any:
    against = None if reference is None else generation_options.open_model(reference, device)[0].model
    parts = {"policy": bundle.model, "reference": against, "tokenizer": bundle.tokenizer}
    return host.call(plugin, "ernie_build_objective", config=plugin.Config(), **parts)


def _items(
    host: Host, plugin: Plugin, bundle: ModelBundle, files: list[str], max_seq_len: int, **options: Any
) -> tuple[list[Item], RowStatistics]:
    """The rows of the files, encoded; a row longer than the model's context is truncated as the method truncates."""
    from erniecore.api.rows import Source
    from erniecore_eval.items import read_items

    length = min(max_seq_len, int(bundle.architecture.get("max_position_embeddings") or max_seq_len))
    given = {"config": plugin.Config(), "tokenizer": bundle.tokenizer, "max_length": length, "too_long": "auto"}
    encoder = host.call(plugin, "ernie_build_encoder", **given)
    return read_items([Source(path=file) for file in files], encoder, **options)


def _keep(file: Path | None) -> Callable[[Generated], None]:
    """A callback that appends each completion to ``file``, if there is one."""
    if file is None:
        return lambda generated: None
    try:
        file.write_text("", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            "cannot write the completions",
            where=str(file),
            found=str(error.strerror),
            fix="name a file in an existing directory that you may write to",
        ) from error

    def keep(generated: Generated) -> None:
        row = {
            "group": generated.item.group,
            "question": generated.question,
            "reference": generated.reference,
            "completion": generated.completion.content,
            "correct": generated.correct,
            "finish_reason": generated.completion.finish_reason,
        }
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(row, ensure_ascii=False) + "\n")

    return keep


def _facts(bundle: ModelBundle, model: Path, method: str, seed: int) -> dict[str, Any]:
    """What a score depends on besides the data, for the JSON report."""
    template = bundle.tokenizer.chat_template if bundle.tokenizer is not None else None
    source = template.source if template is not None else ""
    return {
        "model": str(model),
        "method": method,
        "seed": seed,
        "template_sha256": hashlib.sha256(source.encode()).hexdigest(),
    }


def show(table: ScoreTable, statistics: RowStatistics, facts: dict[str, Any], *, as_json: bool) -> None:
    """The scores as a table, or as one JSON object."""
    if as_json:
        groups = {name: score.as_json() for name, score in table.groups.items()}
        dropped = {"dropped": statistics.total("dropped"), "errors": statistics.errors}
        show_json({**facts, **dropped, **table.total.as_json(), "groups": groups})
        return
    named = {name or "-": score for name, score in table.groups.items()}
    if table.total.metrics:
        columns = {**(named if len(named) > 1 else {}), "all": table.total}
        lines = [[m, *(f"{s.means.get(m, math.nan):.4f}" for s in columns.values())] for m in table.total.means]
        show_table(["metric", *columns], lines)
        return _note_dropped(statistics)
    rows = [row_of(name, score) for name, score in named.items()] if len(named) > 1 else []
    show_table(
        ["group", "rows", "tokens", "loss", "perplexity", "bits/byte", "exact", "95 %"],
        [*rows, row_of("all", table.total)],
    )
    _note_dropped(statistics)


def _note_dropped(statistics: RowStatistics) -> None:
    if dropped := statistics.total("dropped"):
        first = statistics.errors[0] if statistics.errors else {}
        note(
            f"note: {dropped} of {counted(statistics.total('rows'), 'row')} dropped; the first: "
            f"{first.get('file')}:{first.get('line')} {first.get('message')}"
        )


def row_of(name: str, score: Score) -> list[str]:
    """A group's line of the table."""
    exact = score.as_json().get("exact_match")
    measured = [score.loss, score.perplexity, score.bits_per_byte]
    return [
        name,
        str(score.rows),
        str(score.tokens),
        *("-" if value is None else f"{value:.4f}" for value in measured),
        f"{exact['correct']}/{exact['n']} = {exact['score']:.3f}" if exact else "-",
        f"{exact['low']:.3f} to {exact['high']:.3f}" if exact else "-",
    ]
