"""``ernie quantize``: packed weights in a directory. The work is in ``engine/quantize.py`` and the quantizer plugin."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from erniecore.cli import render
from erniecore.cli.options import JsonOption

if TYPE_CHECKING:
    from erniecore.engine.quantize import Quantized


def quantize(
    directory: Annotated[Path, typer.Argument(help="A model directory, a run directory or a checkpoint (step-…).")],
    out: Annotated[Path, typer.Option(help="Where to write; new, empty, or an earlier model of ours.")],
    to: Annotated[str, typer.Option(metavar="NAME", help="Quantizer: wint8, wint4, wint4-8, nf4, or a plugin's.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings of the quantizer, as group_size=64.")
    ] = None,
    report: Annotated[bool, typer.Option("--report", help="Show what every layer lost, not only the worst.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a model with packed weights, say what was lost, load it again and compare; `generate`, `eval` and `chat` read it."""
    from erniecore.engine.quantize import quantize_directory

    done = quantize_directory(directory, out, to, settings or [])
    if as_json:
        render.show_json({**done._asdict(), "path": str(done.path), "layers": [_row(loss) for loss in done.layers]})
        return
    for note in done.notes:
        render.note(f"note: {note}")
    _show(done, whole=report)


def _row(loss: Any) -> dict[str, Any]:
    row = loss._asdict()
    return {**row, "sqnr_db": None if math.isinf(loss.sqnr_db) else round(loss.sqnr_db, 3)}


def _show(done: Quantized, *, whole: bool) -> None:
    shown = done.layers if whole else done.layers[:3]
    rows = [
        (loss.name, "×".join(map(str, loss.shape)), f"{loss.sqnr_db:.1f} dB", f"{loss.largest_error:.3g}")
        for loss in shown
    ]
    render.show_table(("weight" if whole else "worst weights", "shape", "SQNR", "largest error"), rows)
    each = done.num_bytes / max(done.parameters, 1)
    render.show(
        f"{done.path}: {len(done.layers)} weights packed, {done.num_bytes:,} bytes for {done.parameters:,} parameters "
        f"({each:.2f} each); read back bit for bit"
    )
