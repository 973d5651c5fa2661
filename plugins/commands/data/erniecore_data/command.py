"""``ernie data check``, ``show`` and ``stats``: data files before a run. Imports no paddle; prints, the work is in the
other files of this package.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from erniecore.api import DataError, Exit, RowError, UsageError
from erniecore.api.command import (
    JsonOption,
    method_encoder,
    show_json,
    show_table,
    split_files,
    use_color,
)
from erniecore.api.command import show as show_lines

if TYPE_CHECKING:
    from erniecore.api.method import Encoder, Sample
    from erniecore.api.model import Tokenizer
    from erniecore.api.rows import ArrayDataset, RowStatistics

Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE... [formats.NAME.KEY=VALUE]...",
        help="Files: .jsonl, .json, .txt (also .gz), .parquet, .arrow; or a data set directory, DIR:SPLIT. "
        "Then settings of formats.",
    ),
]
Format = Annotated[str, typer.Option("--format", metavar="NAME", help="Format plugin; auto: the one that fits.")]
Model = Annotated[
    Path | None, typer.Option("--model", metavar="DIR", help="Model directory: its tokenizer and chat template.")
]
Method = Annotated[str, typer.Option("--method", metavar="NAME", help="Method plugin that makes the samples.")]
Length = Annotated[int, typer.Option("--max-seq-len", min=2, help="As data.max_seq_len.")]
Workers = Annotated[int, typer.Option("--workers", min=0, help="Processes; 0: this one.")]


def check(
    files: Files,
    format: Format = "auto",
    model: Model = None,
    method: Method = "sft",
    max_seq_len: Length = 2048,
    max_errors: Annotated[int, typer.Option(min=0, help="Errors shown in full; the rest is counted.")] = 20,
    max_drop: Annotated[
        float, typer.Option(min=0, max=1, help="Share of bad rows up to which the exit code is 0.")
    ] = 0.0,
    workers: Workers = 0,
    as_json: JsonOption = False,
) -> int:
    """Check every row and count it; with --model also its tokens. Exit code 4 when rows cannot be used."""
    from erniecore_text.opening import open_tokenizer

    from erniecore_data.checking import check as check_files

    tokenizer, vocabulary = open_tokenizer(model) if model else (None, 0)
    encoder = method_encoder(method, tokenizer, max_seq_len) if tokenizer else None
    files, sections = split_files(files)
    dataset, statistics = check_files(files, format, encoder, sections=sections, workers=workers, max_errors=max_errors)
    report = statistics.as_dict()
    if tokenizer:
        report["tokens"] = _token_facts(dataset, vocabulary)
    bad = bool(statistics.failures) or statistics.total("dropped") > max_drop * statistics.total("rows")
    bad = bad or bool(report.get("tokens", {}).get("ids_out_of_range"))
    if as_json:
        show_json(report)
    else:
        _show_report(statistics, report)
    return int(Exit.DATA if bad else Exit.OK)


def show(
    files: Files,
    model: Annotated[
        Path, typer.Option("--model", metavar="DIR", help="Model directory: its tokenizer and chat template.")
    ],
    format: Format = "auto",
    method: Method = "sft",
    max_seq_len: Length = 2048,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Samples to show.")] = 3,
    line: Annotated[int, typer.Option("--line", min=0, help="Only the row on this line; 0: the first ones.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Samples as the model sees them; the loss tokens are marked."""
    from erniecore_text.opening import open_tokenizer

    from erniecore_data.show import as_dict

    tokenizer, _ = open_tokenizer(model)
    samples = _samples(files, format, method_encoder(method, tokenizer, max_seq_len), limit, line)
    if as_json:
        show_json([as_dict(s, tokenizer) for s in samples])
        return
    for sample in samples:
        _show_sample(sample, tokenizer)


def stats(
    files: Files,
    format: Format = "auto",
    model: Model = None,
    method: Method = "sft",
    max_seq_len: Length = 2048,
    workers: Workers = 0,
    as_json: JsonOption = False,
) -> None:
    """Turns, roles and lengths; with --model also tokens, the share of loss tokens and how full sequences get."""
    from erniecore_text.opening import open_tokenizer

    from erniecore.api.rows import RowStatistics, records
    from erniecore_data.checking import check as check_files
    from erniecore_data.stats import RecordStats, token_stats

    counts, statistics = RecordStats(), RowStatistics()
    files, sections = split_files(files)
    for _, record in records(files, format, statistics, sections):
        counts.add(record)
    report: dict[str, Any] = {**counts.as_dict(), "dropped": statistics.total("dropped")}
    if model:
        encoder = method_encoder(method, open_tokenizer(model)[0], max_seq_len)
        dataset, encoded = check_files(files, format, encoder, sections=sections, workers=workers)
        encoded.check(1.0)
        report["tokens"] = token_stats(dataset, max_seq_len) | {"dropped": encoded.total("dropped")}
    statistics.check(1.0)
    if as_json:
        show_json(report)
    else:
        _show_stats(report)


# ---- what the commands share


def _token_facts(dataset: ArrayDataset, vocabulary: int) -> dict[str, int]:
    facts = {"samples": len(dataset), "tokens": dataset.num_tokens, "loss_tokens": dataset.num_loss_tokens}
    if vocabulary and len(dataset):
        facts["ids_out_of_range"] = int((dataset.input_ids >= vocabulary).sum() + (dataset.labels >= vocabulary).sum())
    return facts


def _samples(files: Sequence[Path], format: str, encoder: Encoder, limit: int, line: int) -> list[Sample]:
    """The first samples, or those of one row. Raises the row's error where that row was asked for."""
    from erniecore.api.rows import RowStatistics, records
    from erniecore_data.checking import check as check_files

    found: list[Sample] = []
    seen, statistics = False, RowStatistics()
    files, sections = split_files(files)
    for source, record in records(files, format, statistics, sections):
        if line and record.origin.line != line:
            continue
        seen = True
        if not isinstance(record, encoder.accepts):
            continue
        try:
            found += encoder.encode(record)
        except RowError as e:
            if line:
                e.where = f"{source.file}:{line} {e.where}"
                raise
        if line or len(found) >= limit:
            break
    if found:
        return found[:limit]
    if line and not seen and not statistics.errors:
        raise UsageError("no row starts on this line", found=str(line), where=" ".join(map(str, files)))
    check_files(files, format, encoder, sections=sections)[1].check(1.0)  # says what is wrong with the rows
    raise DataError("no row gives a sample", where=" ".join(map(str, files)), next=f"ernie data check {files[0]}")


# ---- printing


def _show_report(statistics: RowStatistics, report: dict[str, Any]) -> None:
    from erniecore.api.rows import codes, describe

    for name, count in statistics.files.items():
        dropped = f", {count.dropped} dropped" if count.dropped else ""
        show_lines(f"{name}: {count.format or 'no format'}, {count.rows} rows{dropped}")
    show_lines(*(f"  {describe(error)}" for error in report["errors"]))
    if report["errors_not_listed"]:
        show_lines(f"  and {report['errors_not_listed']} more (--max-errors)")
    rows = [(reason, count, codes.MEANINGS.get(reason, "")) for reason, count in report["reasons"].items()]
    if rows:
        show_table(("reason", "rows", "meaning"), rows)
    if "tokens" in report:
        show_lines(", ".join(f"{value} {name.replace('_', ' ')}" for name, value in report["tokens"].items()))
    show_lines(statistics.summary())


def _show_sample(sample: Sample, tokenizer: Tokenizer) -> None:
    from erniecore_data.show import marked, spans

    found = [p._replace(text=_visible(p.text)) for p in spans(sample, tokenizer)]
    num_loss_tokens = sum(len(p.ids) for p in found if p.loss)
    note = f", {sample.truncated}" if sample.truncated else ""
    show_lines(
        f"--- {sample.origin.file}:{sample.origin.line}  {len(sample)} tokens, {num_loss_tokens} loss tokens{note}"
    )
    if use_color(sys.stdout):
        text = "".join(f"\x1b[32m{p.text}\x1b[0m" if p.loss else p.text for p in found)
    else:
        text = marked(found)
    show_lines(text, "")


def _visible(text: str) -> str:
    """Rows come from anywhere: their control characters must not reach the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def _show_stats(report: dict[str, Any]) -> None:
    for name in ("kinds", "roles", "turns", "extras", "characters"):
        if report[name]:
            show_lines(f"{name + ':':<12}" + ", ".join(f"{k} {v}" for k, v in report[name].items()))
    tokens = report.get("tokens")
    dropped = (tokens or report)["dropped"]
    if dropped:
        show_lines(f"dropped:    {dropped} rows; `ernie data check` with the same arguments says why")
    if not tokens:
        return
    share = tokens["loss_tokens"] / max(tokens["tokens"], 1)
    show_lines(f"tokens:     {tokens['tokens']} in {tokens['samples']} samples, {share:.1%} loss tokens")
    show_lines("lengths:    " + ", ".join(f"{k} {v}" for k, v in tokens["lengths"].items()))
    show_lines("fill rate:  " + ", ".join(f"{k} {v:.1%}" for k, v in tokens["fill_rate"].items()))
    largest = max((b["count"] for b in tokens["histogram"]), default=1)
    for bin_ in tokens["histogram"]:
        bar = "#" * round(40 * bin_["count"] / largest)
        show_lines(f"  {bin_['from']:>6} – {bin_['to']:<6} {bin_['count']:>8} {bar}")
