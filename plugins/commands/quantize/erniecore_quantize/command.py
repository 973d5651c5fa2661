"""The command ``ernie quantize``: writes a model directory with quantized weights. The work is in ``quantize.py`` and in the
quantizer plugin."""

from __future__ import annotations

import math
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from erniecore.api import counted
from erniecore.api.command import JsonOption, note, opens_models, show, show_json, show_table

if TYPE_CHECKING:
    from erniecore_quantize.losses import CacheLoss
    from erniecore_quantize.quantize import Quantized


@opens_models
def quantize(
    directory: Annotated[Path, typer.Argument(help="A model directory, a run directory or a checkpoint (step-…).")],
    out: Annotated[Path, typer.Option(help="Where to write; new, empty, or an earlier model of ours.")],
    to: Annotated[str, typer.Option(metavar="NAME", help="Quantizer: wint8, wint4, wint4-8, nf4, or a plugin's.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings of the quantizer, as group_size=64.")
    ] = None,
    calib: Annotated[
        list[str] | None, typer.Option("--calib", metavar="FILE", help="Calibration data; may be repeated.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="FILE", help="Data on which perplexity is measured; default: that of --calib."),
    ] = None,
    method: Annotated[str, typer.Option("--method", metavar="NAME", help="Method whose encoder is used.")] = "sft",
    max_seq_len: Annotated[int, typer.Option("--max-seq-len", min=2, help="Tokens per row.")] = 512,
    report: Annotated[
        bool, typer.Option("--report", help="Show the error of every layer, not only of the worst.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a model with quantized weights, report the error, and verify the files; `generate`, `eval` and `chat` load it."""
    from erniecore_quantize.quantize import Data, quantize_directory

    rows, start = Data(calib or (), data or (), method, max_seq_len), time.perf_counter()
    done = quantize_directory(directory, out, to, settings or [], rows)
    effort = _effort(directory, time.perf_counter() - start)
    if as_json:
        scores = {key: score and score.as_json() for key, score in (("before", done.before), ("after", done.after))}
        layers = [_row(loss) for loss in done.layers]
        cache = done.cache and {
            **done.cache._asdict(),
            "form": done.cache.quant_dtype,  # the former key
            "layers": {k: [*map(_rounded, v)] for k, v in done.cache.layers.items()},
        }
        facts = {**done._asdict(), **effort._asdict()}
        show_json({**facts, "path": str(done.path), "layers": layers, "cache": cache, **scores})
        return
    for text in done.notes:
        note(f"note: {text}")
    _show(done, effort, whole=report)


class Effort(NamedTuple):
    """What the command took: seconds, bytes of the weight files of the source (None: a checkpoint, which holds more than
    weights), and the peak of the process's resident memory in bytes."""

    seconds: float
    source_bytes: int | None
    peak_memory: int

    def __str__(self) -> str:
        from erniecore.api.planning import seconds_text, size_text

        rate = (
            "" if self.source_bytes is None else f", {self.source_bytes / self.seconds / 1e6:,.0f} MB/s of the source"
        )
        return f"{seconds_text(self.seconds)}{rate}, peak memory {size_text(self.peak_memory)}"


def _effort(directory: Path, seconds: float) -> Effort:
    weights = directory.glob("*.safetensors") if (directory / "config.json").is_file() else ()
    size = sum(path.stat().st_size for path in weights) or None
    return Effort(seconds, size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def _row(loss: Any) -> dict[str, Any]:
    return {**loss._asdict(), "sqnr_db": _rounded(loss.sqnr_db), "output_db": _rounded(loss.output_db)}


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None or math.isinf(ratio) else round(ratio, 3)


def _decibels(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1f} dB"


def _scores(done: Quantized) -> list[tuple[str, Any]]:
    return [("original", done.before), ("quantized", done.after)]


def _show_cache(cache: CacheLoss, *, whole: bool) -> None:
    places = [(ratio, f"layer {i}, {part}") for part, ratios in cache.layers.items() for i, ratio in enumerate(ratios)]
    shown = places if whole else sorted(places)[:3]
    show_table(
        ("KV cache" if whole else "worst of the KV cache", "SQNR"), [(name, _decibels(db)) for db, name in shown]
    )
    scales = "scales from the calibration data" if cache.static else "scales of each position"
    fraction = cache.bytes_per_token / cache.plain_bytes_per_token
    show(
        f"cache: {cache.quant_dtype}, {scales}: {cache.bytes_per_token:,.0f} bytes per token instead of "
        f"{cache.plain_bytes_per_token:,.0f} ({fraction:.0%})"
    )


def _show(done: Quantized, effort: Effort, *, whole: bool) -> None:
    shown = done.layers if whole else done.layers[:3]
    rows = [
        (
            loss.name,
            "×".join(map(str, loss.shape)),
            _decibels(loss.sqnr_db),
            _decibels(loss.output_db),
            f"{loss.largest_error:.3g}",
        )
        for loss in shown
    ]
    if rows:
        head = "weight" if whole else "worst weights"
        show_table((head, "shape", "SQNR", "output SQNR", "largest error"), rows)
    if done.cache is not None:
        _show_cache(done.cache, whole=whole)
    if done.before is not None and done.after is not None:
        scores = [(name, score.loss or math.nan, score.perplexity or math.nan) for name, score in _scores(done)]
        show_table(("model", "loss", "perplexity"), [(n, f"{a:.4f}", f"{b:.4f}") for n, a, b in scores])
    each = done.num_bytes / max(done.parameters, 1)
    show(
        f"{done.path}: {counted(len(done.layers), 'weight')} quantized, {done.num_bytes:,} bytes for "
        f"{done.parameters:,} parameters ({each:.2f} each) in {effort}; verified bit for bit"
    )
