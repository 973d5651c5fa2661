"""``ernie data check``, ``show`` and ``stats``: data files before a run. Imports no paddle; prints, the work is in the
other files of this package.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from erniecore.api import DataError, Exit, RowError, UsageError, counted
from erniecore.api.command import (
    NOTHING,
    Chosen,
    JsonOption,
    RayOption,
    opens_models,
    show_json,
    show_table,
    takes,
    use_color,
)
from erniecore.api.command import show as show_lines

if TYPE_CHECKING:
    from erniecore.api.method import Sample
    from erniecore.api.model import Tokenizer
    from erniecore.api.rows import ArrayDataset, RowStatistics
    from erniecore_data.preview import Preview

Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE]... [RUN.yaml] [SECTION.KEY=VALUE]...",
        help="Data files: .jsonl, .json, .txt (also .gz), .parquet, .arrow; or a data set directory, DIR:SPLIT. A settings "
        "file and single settings, as for `ernie run`; without data files, those of data.train and data.eval.",
        show_default=False,
    ),
]
Length = Annotated[int | None, typer.Option("--max-seq-len", min=2, help="Same as data.max_seq_len=N.")]
Workers = Annotated[int, typer.Option("--workers", min=0, help="Processes; 0: this one.")]


@opens_models
@takes("model", "method", "format", "data")
def check(
    files: Files = None,
    chosen: Chosen = NOTHING,
    max_seq_len: Length = None,
    max_errors: Annotated[int, typer.Option(min=0, help="Errors shown in full; the rest is counted.")] = 20,
    max_drop: Annotated[
        float, typer.Option(min=0, max=1, help="Fraction of bad rows up to which the exit code is 0.")
    ] = 0.0,
    workers: Workers = 0,
    ray: RayOption = "",
    as_json: JsonOption = False,
) -> int:
    """Check every row and count it; with --model also its tokens, and patches of images. Exit code 4 when rows cannot be used."""
    from erniecore.api.rows import workers_of
    from erniecore_data.checking import check as check_files
    from erniecore_data.preview import open_preview

    wanted = open_preview(files or (), chosen, max_seq_len)
    dataset, statistics = check_files(
        wanted.sources,
        wanted.format,
        wanted.encoder,
        sections=wanted.sections,
        workers=workers_of(workers, ray),
        max_errors=max_errors,
    )
    statistics.notes += wanted.unchecked
    report = statistics.as_dict()
    if wanted.encoder:
        from erniecore_data.stats import change_stats, patch_stats

        report["tokens"] = _token_facts(dataset, wanted.vocabulary)
        if patches := patch_stats(dataset, wanted.encoder):
            report["patches"] = patches
        if wanted.augments and patches:
            report["changes"] = change_stats(dataset, wanted.encoder, wanted.seed)
    bad = bool(statistics.failures) or statistics.total("dropped") > max_drop * statistics.total("rows")
    bad = bad or bool(report.get("tokens", {}).get("ids_out_of_range"))
    if as_json:
        show_json(report)
    else:
        _show_report(statistics, report)
    return int(Exit.DATA if bad else Exit.OK)


@opens_models
@takes("model", "method", "format", "data")
def show(
    files: Files = None,
    chosen: Chosen = NOTHING,
    max_seq_len: Length = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Samples to show.")] = 3,
    line: Annotated[int, typer.Option("--line", min=0, help="Only the row on this line; 0: the first ones.")] = 0,
    element: Annotated[
        int | None, typer.Option("--element", min=0, metavar="N", help="Only element [N] of a JSON array on one line.")
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            "--images", metavar="DIR", help="Write images and frames of videos there, as the model sees them."
        ),
    ] = None,
    epoch: Annotated[
        int,
        typer.Option(
            "--epoch",
            min=0,
            metavar="N",
            help="Images with the random changes that they get in this epoch of training, 1 is the first; 0: without.",
        ),
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Samples as the model sees them; the loss tokens are marked. Needs a model: --model DIR, or model in the settings."""
    from erniecore.api.data import Draw, media_reader
    from erniecore_data.layout import legend
    from erniecore_data.preview import open_preview
    from erniecore_data.seen import SeenImages
    from erniecore_data.show import as_dict

    wanted = open_preview(files or (), chosen, max_seq_len)
    if wanted.tokenizer is None:
        fix = (
            "name a model directory with --model, or a tokenizer with model.tokenizer; without one rows can be checked"
        )
        raise UsageError("samples need a tokenizer", fix=fix, next=wanted.check_command)
    if epoch and not wanted.augments:
        fix = "set model.image_augment, for example model.image_augment=document, or leave --epoch out"
        raise UsageError("images are the same in every epoch", where="--epoch", found=str(epoch), fix=fix)
    seen = SeenImages(media_reader(wanted.encoder), images, Draw(wanted.seed, epoch - 1) if epoch else None)
    samples = _samples(wanted, limit, line, element)
    if as_json:
        show_json([as_dict(s, wanted.tokenizer, seen.of(s)) for s in samples])
        return
    show_lines(legend(use_color(sys.stdout)), "")
    for sample in samples:
        _show_sample(sample, wanted.tokenizer, seen.of(sample))


@opens_models
@takes("model", "method", "format", "data")
def stats(
    files: Files = None,
    chosen: Chosen = NOTHING,
    max_seq_len: Length = None,
    workers: Workers = 0,
    ray: RayOption = "",
    as_json: JsonOption = False,
) -> None:
    """Turns, roles and lengths; with --model also tokens, the fraction of loss tokens and the packing efficiency."""
    from erniecore.api.rows import RowStatistics, workers_of
    from erniecore_data.checking import check as check_files
    from erniecore_data.preview import open_preview
    from erniecore_data.reading import records
    from erniecore_data.stats import RecordStats, token_stats

    wanted = open_preview(files or (), chosen, max_seq_len)
    counts, statistics = RecordStats(), RowStatistics()
    for _, record in records(wanted.sources, wanted.format, statistics, wanted.sections):
        counts.add(record)
    report: dict[str, Any] = {**counts.as_dict(), "dropped": statistics.total("dropped")}
    if wanted.encoder:
        dataset, encoded = check_files(
            wanted.sources, wanted.format, wanted.encoder, sections=wanted.sections, workers=workers_of(workers, ray)
        )
        encoded.check(1.0, wanted.check_command)
        report["tokens"] = token_stats(dataset, wanted.max_seq_len) | {"dropped": encoded.total("dropped")}
    statistics.check(1.0, wanted.check_command)
    if as_json:
        show_json(report)
    else:
        _show_stats(report, wanted.check_command)


# ---- what the commands share


def _token_facts(dataset: ArrayDataset, vocabulary: int) -> dict[str, int]:
    facts = {"samples": len(dataset), "tokens": dataset.num_tokens, "loss_tokens": dataset.num_loss_tokens}
    if vocabulary and len(dataset):
        facts["ids_out_of_range"] = int((dataset.input_ids >= vocabulary).sum() + (dataset.labels >= vocabulary).sum())
    return facts


def _samples(wanted: Preview, limit: int, line: int, element: int | None) -> list[Sample]:
    """The first samples, or those of one row. Raises the row's error where that row was asked for."""
    from erniecore.api.rows import RowStatistics, describe
    from erniecore_data.checking import check as check_files
    from erniecore_data.reading import records

    found: list[Sample] = []
    encoder, statistics = wanted.encoder, RowStatistics(sys.maxsize)
    assert encoder is not None
    one = element is not None or line > 0
    seen, files = False, " ".join(source.path for source in wanted.sources)
    for _, record in records(wanted.sources, wanted.format, statistics, wanted.sections):
        origin = record.origin
        if one and (line not in (0, origin.line) or element not in (None, origin.element)):
            continue
        seen = True
        if not isinstance(record, encoder.accepts):
            continue
        try:
            found += encoder.encode(record)
        except RowError as e:
            if one:
                e.where = origin.place(e.where)
                raise
        if (one and origin.element in (None, element)) or len(found) >= limit:
            break
    if found:
        return found[:limit]
    if one and not seen:
        inside = f"$[{element}]"
        bad = [
            e
            for e in statistics.errors
            if e["line"] == line or f"{e['path']}.".startswith((f"{inside}.", f"{inside}["))
        ]
        if bad:
            raise DataError(describe(bad[0]), code=bad[0]["code"])
        raise UsageError("no row starts there", found=str(line or f"[{element}]"), where=files)
    _, checked = check_files(wanted.sources, wanted.format, encoder, sections=wanted.sections)
    checked.check(1.0, wanted.check_command)  # says what is wrong with the rows
    raise DataError("no row gives a sample", where=files, next=wanted.check_command)


# ---- printing


def _show_report(statistics: RowStatistics, report: dict[str, Any]) -> None:
    from erniecore.api.rows import codes, describe

    for name, count in statistics.files.items():
        dropped = f", {count.dropped} dropped" if count.dropped else ""
        show_lines(f"{name}: {count.described() or 'no format'}, {counted(count.rows, 'row')}{dropped}")
    listed = (f"  {describe(error)}" for error in report["errors"])
    show_lines(*(f"note: {note}" for note in statistics.notes), *listed, indent=4)
    if report["errors_not_listed"]:
        show_lines(f"  and {report['errors_not_listed']} more (--max-errors)")
    rows = [(reason, count, codes.MEANINGS.get(reason, "")) for reason, count in report["reasons"].items()]
    if rows:
        show_table(("reason", "rows", "meaning"), rows)
    if "tokens" in report:
        facts = report["tokens"]
        shown = [
            counted(facts[name], name.replace("_", " ").removesuffix("s"))
            for name in ("samples", "tokens", "loss_tokens")
        ]
        if "ids_out_of_range" in facts:
            shown.append(f"{counted(facts['ids_out_of_range'], 'id')} out of range")
        show_lines(", ".join(shown))
    if "patches" in report:
        facts, largest = report["patches"], report["patches"]["per_sample"]["max"]
        with_images = f"{counted(facts['samples'], 'sample')} with images"
        show_lines(f"{with_images}, {counted(facts['patches'], 'patch')}, at most {largest} in one")
    if "changes" in report:
        facts = report["changes"]
        each = ", ".join(f"{name} {count}" for name, count in facts["transforms"].items())
        show_lines(f"{facts['changed']} of {counted(facts['images'], 'image')} change in the first epoch: {each}")
    show_lines(statistics.summary())


def _show_sample(sample: Sample, tokenizer: Tokenizer, media: list[dict[str, Any]]) -> None:
    from erniecore_data.layout import sample_lines
    from erniecore_data.seen import described, folded
    from erniecore_data.show import spans

    found = spans(sample, tokenizer)
    if media:
        found = [span._replace(text=folded(span.text, span.ids, tokenizer)) for span in found]
    loss_tokens = counted(sum(len(p.ids) for p in found if p.loss), "loss token")
    note = f", {sample.truncated}" if sample.truncated else ""
    show_lines(f"--- {sample.origin.place()}  {counted(len(sample), 'token')}, {loss_tokens}{note}")
    show_lines(*described(media))
    width = shutil.get_terminal_size().columns
    show_lines(*sample_lines(found, width, use_color(sys.stdout)), "")


def _show_stats(report: dict[str, Any], command: str) -> None:
    for name in ("kinds", "roles", "turns", "extras", "characters"):
        if report[name]:
            show_lines(f"{name + ':':<12}" + ", ".join(f"{k} {v}" for k, v in report[name].items()), indent=12)
    tokens = report.get("tokens")
    dropped = (tokens or report)["dropped"]
    if dropped:
        show_lines(f"dropped:    {counted(dropped, 'row')}; `{command}` says why", indent=12)
    if not tokens:
        return
    share = tokens["loss_tokens"] / max(tokens["tokens"], 1)
    show_lines(
        f"tokens:     {tokens['tokens']} in {counted(tokens['samples'], 'sample')}, {share:.1%} loss tokens", indent=12
    )
    show_lines("lengths:    " + ", ".join(f"{k} {v}" for k, v in tokens["lengths"].items()), indent=12)
    show_lines("fill rate:  " + ", ".join(f"{k} {v:.1%}" for k, v in tokens["fill_rate"].items()), indent=12)
    largest = max((b["count"] for b in tokens["histogram"]), default=1)
    for bin_ in tokens["histogram"]:
        bar = "#" * round(min(40, shutil.get_terminal_size().columns - 30) * bin_["count"] / largest)
        show_lines(f"  {bin_['from']:>6} – {bin_['to']:<6} {bin_['count']:>8} {bar}")
