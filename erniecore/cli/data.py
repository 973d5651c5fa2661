"""``ernie data``: check files, show samples as the model sees them, count. No paddle; the work is in ``erniecore.data``.

``ernie data build`` is ``data_build.py``, ``convert`` is ``data_convert.py``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from erniecore.cli import data_build, data_cache, data_convert, render
from erniecore.cli.data_convert import split_files
from erniecore.cli.group import new_group
from erniecore.cli.options import JsonOption
from erniecore.errors import Exit, UsageError

if TYPE_CHECKING:
    from erniecore.data.ledger import Ledger
    from erniecore.data.store import TokenStore
    from erniecore.types import Encoder, Sample, Tokenizer

app = new_group("Check, show, count and convert data files; build token files; the cache of tokenised data.")
app.command()(data_build.build)
app.command()(data_convert.convert)
app.add_typer(data_cache.app, name="cache")

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


@app.command()
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
    """Look at every row and account for it; with --model also at its tokens. Exit code 4 when rows cannot be used."""
    from erniecore.data.checking import check as check_files

    tokenizer, vocabulary = open_tokenizer(model) if model else (None, 0)
    encoder = _encoder(method, tokenizer, max_seq_len) if tokenizer else None
    files, sections = split_files(files)
    store, ledger = check_files(files, format, encoder, sections=sections, workers=workers, max_errors=max_errors)
    report = ledger.as_dict()
    if tokenizer:
        report["tokens"] = _token_facts(store, vocabulary)
    bad = bool(ledger.failures) or ledger.total("dropped") > max_drop * ledger.total("rows")
    bad = bad or bool(report.get("tokens", {}).get("ids_out_of_range"))
    if as_json:
        render.show_json(report)
    else:
        _show_report(ledger, report)
    return int(Exit.DATA if bad else Exit.OK)


@app.command()
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
    """Samples as the model sees them; what it learns is marked."""
    from erniecore.data.show import as_dict

    tokenizer, _ = open_tokenizer(model)
    samples = _samples(files, format, _encoder(method, tokenizer, max_seq_len), limit, line)
    if as_json:
        render.show_json([as_dict(s, tokenizer) for s in samples])
        return
    for sample in samples:
        _show_sample(sample, tokenizer)


@app.command()
def stats(
    files: Files,
    format: Format = "auto",
    model: Model = None,
    method: Method = "sft",
    max_seq_len: Length = 2048,
    workers: Workers = 0,
    as_json: JsonOption = False,
) -> None:
    """Turns, roles and lengths; with --model also tokens, the learned share and how full rows get."""
    from erniecore.data.checking import check as check_files
    from erniecore.data.checking import records
    from erniecore.data.ledger import Ledger
    from erniecore.data.stats import RecordStats, token_stats

    counts, ledger = RecordStats(), Ledger()
    files, sections = split_files(files)
    for _, record in records(files, format, ledger, sections):
        counts.add(record)
    report: dict[str, Any] = {**counts.as_dict(), "dropped": ledger.total("dropped")}
    if model:
        encoder = _encoder(method, open_tokenizer(model)[0], max_seq_len)
        store, encoded = check_files(files, format, encoder, sections=sections, workers=workers)
        encoded.check(1.0)
        report["tokens"] = token_stats(store, max_seq_len) | {"dropped": encoded.total("dropped")}
    ledger.check(1.0)
    if as_json:
        render.show_json(report)
    else:
        _show_stats(report)


# ---- what the commands share


def open_tokenizer(directory: Path) -> tuple[Tokenizer, int]:
    """The tokenizer of a model directory as its model plugin reads it, and the model's vocabulary size (0: no model)."""
    from erniecore.data.tokenizer import SentencePieceTokenizer

    if not (directory / "config.json").is_file() and (directory / "tokenizer.model").is_file():
        return SentencePieceTokenizer.from_directory(directory), 0
    from erniecore.engine.models.bundles import locate, open_tokenizer

    tokenizer, architecture = open_tokenizer(locate(directory).path)
    return tokenizer, int(architecture.get("vocab_size", 0))


def _encoder(method: str, tokenizer: Tokenizer, max_seq_len: int) -> Encoder:
    from erniecore import registry
    from erniecore.host import assemble

    plugin = registry.load("method", method)
    host = assemble({"method": plugin})
    encoder: Encoder = host.call(
        plugin, "ernie_build_encoder", config=plugin.Config(), tokenizer=tokenizer, max_length=max_seq_len
    )
    return encoder


def _token_facts(store: TokenStore, vocabulary: int) -> dict[str, int]:
    facts = {"samples": len(store), "tokens": store.num_tokens, "learned": store.num_learned}
    if vocabulary and len(store):
        facts["ids_out_of_range"] = int((store.input_ids >= vocabulary).sum() + (store.labels >= vocabulary).sum())
    return facts


def _samples(files: Sequence[Path], format: str, encoder: Encoder, limit: int, line: int) -> list[Sample]:
    """The first samples, or those of one row. Raises the row's error where that row was asked for."""
    from erniecore.data.checking import check as check_files
    from erniecore.data.checking import records
    from erniecore.data.ledger import Ledger
    from erniecore.errors import DataError, RowError

    found: list[Sample] = []
    seen, ledger = False, Ledger()
    files, sections = split_files(files)
    for source, record in records(files, format, ledger, sections):
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
    if line and not seen and not ledger.errors:
        raise UsageError("no row starts on this line", found=str(line), where=" ".join(map(str, files)))
    check_files(files, format, encoder, sections=sections)[1].check(1.0)  # says what is wrong with the rows
    raise DataError("no row gives a sample", where=" ".join(map(str, files)), next=f"ernie data check {files[0]}")


# ---- printing


def _show_report(ledger: Ledger, report: dict[str, Any]) -> None:
    from erniecore.data.codes import MEANINGS
    from erniecore.data.ledger import describe

    for name, count in ledger.files.items():
        dropped = f", {count.dropped} dropped" if count.dropped else ""
        render.show(f"{name}: {count.format or 'no format'}, {count.rows} rows{dropped}")
    render.show(*(f"  {describe(error)}" for error in report["errors"]))
    if report["errors_not_listed"]:
        render.show(f"  and {report['errors_not_listed']} more (--max-errors)")
    rows = [(reason, count, MEANINGS.get(reason, "")) for reason, count in report["reasons"].items()]
    if rows:
        render.show_table(("reason", "rows", "meaning"), rows)
    if "tokens" in report:
        render.show(", ".join(f"{value} {name.replace('_', ' ')}" for name, value in report["tokens"].items()))
    render.show(ledger.summary())


def _show_sample(sample: Sample, tokenizer: Tokenizer) -> None:
    from erniecore.data.show import marked, spans

    pieces = [p._replace(text=_visible(p.text)) for p in spans(sample, tokenizer)]
    learned = sum(len(p.ids) for p in pieces if p.learned)
    note = f", {sample.truncated}" if sample.truncated else ""
    render.show(f"--- {sample.origin.file}:{sample.origin.line}  {len(sample)} tokens, {learned} learned{note}")
    if render.use_color(sys.stdout):
        text = "".join(f"\x1b[32m{p.text}\x1b[0m" if p.learned else p.text for p in pieces)
    else:
        text = marked(pieces)
    render.show(text, "")


def _visible(text: str) -> str:
    """Rows come from anywhere: their control characters must not reach the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def _show_stats(report: dict[str, Any]) -> None:
    for name in ("kinds", "roles", "turns", "extras", "characters"):
        if report[name]:
            render.show(f"{name + ':':<12}" + ", ".join(f"{k} {v}" for k, v in report[name].items()))
    tokens = report.get("tokens")
    dropped = (tokens or report)["dropped"]
    if dropped:
        render.show(f"dropped:    {dropped} rows; `ernie data check` with the same words says why")
    if not tokens:
        return
    share = tokens["learned"] / max(tokens["tokens"], 1)
    render.show(f"tokens:     {tokens['tokens']} in {tokens['samples']} samples, {share:.1%} learned")
    render.show("lengths:    " + ", ".join(f"{k} {v}" for k, v in tokens["lengths"].items()))
    render.show("fill rate:  " + ", ".join(f"{k} {v:.1%}" for k, v in tokens["fill_rate"].items()))
    largest = max((b["count"] for b in tokens["histogram"]), default=1)
    for bin_ in tokens["histogram"]:
        bar = "#" * round(40 * bin_["count"] / largest)
        render.show(f"  {bin_['from']:>6} – {bin_['to']:<6} {bin_['count']:>8} {bar}")
