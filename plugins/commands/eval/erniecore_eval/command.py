"""``ernie eval``: loss, bits per byte and exact match of a model on data files, by group."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from erniecore_generation import options as generation_options
from erniecore_generation.options import Adapter, Device, Speculative, Temperature, TopP

from erniecore.api import UsageError, counted
from erniecore.api.command import JsonOption, note, opens_models, show_json, show_table
from erniecore_eval.asked import Asked
from erniecore_eval.measured import measure_model

if TYPE_CHECKING:
    from erniecore.api.rows import RowStatistics
    from erniecore_eval.compared import ScoredRow
    from erniecore_eval.suites import Score, ScoreTable

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
_Model = Annotated[Path | None, typer.Option("--model", metavar="DIR", help="Model directory, run or checkpoint.")]
_Data = Annotated[list[str] | None, typer.Option("--data", metavar="FILE", help="Data file; may be repeated.")]
_Compare = Annotated[
    tuple[Path, Path] | None,
    typer.Option("--compare", metavar="A B", help="Compare two models on --data, or two files of --samples."),
]
_Samples = Annotated[
    Path | None,
    typer.Option("--samples", metavar="FILE", help="Write what each row got as a JSON line, for --compare."),
]
_Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Write the results as JSON, with sha256 of model and rows."),
]
_BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Rows per batch.")]
_MaxSeqLen = Annotated[int, typer.Option("--max-seq-len", min=2, help="Tokens per row.")]
_Generate = Annotated[bool, typer.Option("--generate", help="Also generate the last message of each row.")]
_NewTokens = Annotated[
    int, typer.Option("--max-new-tokens", min=1, help="Maximum number of new tokens per completion.")
]


@opens_models
def evaluate(
    model: _Model = None,
    data: _Data = None,
    compare: _Compare = None,
    samples: _Samples = None,
    out: _Out = None,
    format: _Format = "auto",
    method: _Method = "sft",
    reference: _Reference = None,
    limit: _Limit = 0,
    group_by: _GroupBy = "",
    batch_size: _BatchSize = 8,
    max_seq_len: _MaxSeqLen = 2048,
    generate: _Generate = False,
    completions: _Completions = None,
    max_new_tokens: _NewTokens = 64,
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
    Rates come with their number of rows and Wilson's 95 % interval. --compare A B says whether two models, or two files of
    samples, differ by more than chance on the same rows: paired bootstrap, and McNemar's exact test on right and wrong.
    """
    if completions is not None and not generate:
        raise UsageError("--completions needs --generate", fix="add --generate, which generates them")
    sampling = generation_options.sampling_from({}, seed, temperature=temperature, top_p=top_p)
    asked = Asked(
        tuple(data or ()), format, method, reference, limit, group_by, batch_size, max_seq_len, generate, completions,
        max_new_tokens, sampling, speculative, seed, adapter, device, samples is not None or compare is not None,
        hashed=out is not None,
    )  # fmt: skip
    if compare is not None:
        if model is not None or samples is not None or completions is not None or adapter is not None:
            raise UsageError("--compare takes two models or files and --data", fix="leave out the options of one model")
        return show_comparison(compare, asked, out, as_json=as_json)
    for option, given in (("--model", model), ("--data", data)):
        if not given:
            raise UsageError(f"missing option '{option}'", next="ernie eval --help")
    assert model is not None
    show_scores(model, asked, samples, out, as_json=as_json)


def show_scores(model: Path, asked: Asked, samples: Path | None, out: Path | None, *, as_json: bool) -> None:
    """Evaluate one model, and write what is to be kept."""
    found = measure_model(model, asked)
    if samples is not None:
        from erniecore_eval.sample_files import write_rows

        write_rows(samples, found.rows)
    body = body_of(found.table, found.statistics, found.facts)
    if out is not None:
        from erniecore_eval.report_file import write_report

        write_report(out, {**found.hashes, **body}, asked)
    show(found.table, found.statistics, body, as_json=as_json)


def show_comparison(pair: tuple[Path, Path], asked: Asked, out: Path | None, *, as_json: bool) -> None:
    """Evaluate what is a model, read what is a file of samples, and compare the two by group and as a whole."""
    from erniecore_eval.compared import compare, paired

    if any(not path.is_file() for path in pair) and not asked.data:
        raise UsageError("missing option '--data'", fix="name the rows on which the models are compared")
    (a, of_a), (b, of_b) = (_rows_of(path, asked) for path in pair)
    pairs = paired(a, b)
    groups: dict[str, list[Any]] = {}
    for entry in pairs:
        groups.setdefault(entry[0].group, []).append(entry)
    named = {name: compare(members, seed=asked.seed) for name, members in groups.items()} if len(groups) > 1 else {}
    body = {**compare(pairs, seed=asked.seed), "groups": named}
    facts = {"a": str(pair[0]), "b": str(pair[1]), "seed": asked.seed}
    if out is not None:
        from erniecore_eval.report_file import write_report

        write_report(out, {**facts, "hashes": {"a": of_a, "b": of_b}, **body}, asked)
    if as_json:
        return show_json({**facts, **body})
    columns = ["group", "rows", "measure", "A", "B", "B - A", "95 %", "p", "McNemar p"]
    show_table(
        columns, [line for name, part in [*named.items(), ("all", body)] for line in lines_of(name or "-", part)]
    )


def _rows_of(path: Path, asked: Asked) -> tuple[list[ScoredRow], dict[str, str]]:
    """What one side of a comparison got, and the hashes of what it was where they were asked for."""
    from erniecore_eval.report_file import samples_sha256
    from erniecore_eval.sample_files import read_rows

    if path.is_file():
        return read_rows(path), {"samples_sha256": samples_sha256(path)} if asked.hashed else {}
    found = measure_model(path, asked)
    return found.rows, found.hashes


def lines_of(name: str, part: dict[str, Any]) -> list[list[str]]:
    """A group's lines of the table of a comparison, one per measure."""
    measures = {key: part[key] for key in ("loss", "bits_per_byte", "accuracy") if key in part}
    lines = []
    for measure, found in {**measures, **part.get("scores", {})}.items():
        p = found.get("mcnemar_p")
        shown = "-" if p is None else f"{p:.4f} ({found['only_a']}:{found['only_b']})"
        numbers = [f"{found[key]:.4f}" for key in ("a", "b")]
        interval = f"{found['low']:+.4f} to {found['high']:+.4f}"
        lines.append(
            [
                name,
                str(part["rows"]),
                measure,
                *numbers,
                f"{found['difference']:+.4f}",
                interval,
                f"{found['p']:.4f}",
                shown,
            ]
        )
    return lines


def body_of(table: ScoreTable, statistics: RowStatistics, facts: dict[str, Any]) -> dict[str, Any]:
    """The scores as one JSON object."""
    groups = {name: score.as_json() for name, score in table.groups.items()}
    dropped = {"dropped": statistics.total("dropped"), "errors": statistics.errors}
    return {**facts, **dropped, **table.total.as_json(), "groups": groups}


def show(table: ScoreTable, statistics: RowStatistics, body: dict[str, Any], *, as_json: bool) -> None:
    """The scores as a table, or as one JSON object."""
    if as_json:
        show_json(body)
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
