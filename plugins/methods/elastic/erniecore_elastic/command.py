"""The command ``ernie extract``: a smaller model out of a model. The work is in ``extraction.py``."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from erniecore.api.command import JsonOption, note, opens_models, show, show_json

if TYPE_CHECKING:
    from erniecore_elastic.extraction import Extracted


@opens_models
def extract(
    directory: Annotated[Path, typer.Argument(help="A model directory, or the directory of a finished run.")],
    out: Annotated[Path, typer.Option(help="Where to write; new, empty, or an earlier model of ours.")],
    depth: Annotated[
        int, typer.Option("--depth", metavar="N", min=0, help="Layers; first and last are kept. 0: all.")
    ] = 0,
    experts: Annotated[
        int, typer.Option("--experts", metavar="N", min=0, help="Routed experts of a layer. 0: all.")
    ] = 0,
    k: Annotated[int, typer.Option("--k", metavar="N", min=0, help="Experts per token. 0: as many as now.")] = 0,
    usage: Annotated[
        Path | None,
        typer.Option("--usage", metavar="RUN", help="Run whose recorded usage chooses experts [DIRECTORY]."),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="FILE", help="Measure the usage on this data; may be repeated."),
    ] = None,
    method: Annotated[str, typer.Option("--method", metavar="NAME", help="Method whose encoder reads --data.")] = "pt",
    max_seq_len: Annotated[int, typer.Option("--max-seq-len", min=2, help="Tokens per row of --data.")] = 512,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be written; write nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Extract a smaller model from a model: fewer layers, fewer experts, fewer experts per token.

    The result is an ordinary model. It is useful if the source was trained by elastic-pt or elastic-sft with these sizes, or
    after fine-tuning. Weights are copied from file to file; a killed command continues where it stopped.
    """
    from erniecore_elastic.extraction import Sizes, extract_directory

    wanted = Sizes(depth, experts, k, usage, data or (), method, max_seq_len)
    done = extract_directory(directory, out, wanted, dry_run=dry_run)
    if as_json:
        show_json(facts(done))
        return
    for text in done.notes:
        note(f"note: {text}")
    for line in lines(done, dry_run=dry_run):
        show(line)


def facts(done: Extracted) -> dict[str, Any]:
    """The content of the JSON that the command prints."""
    part = done.part
    return {
        "path": str(done.path),
        "layers": list(part.layers),
        "experts": None if part.experts is None else [list(row) for row in part.experts],
        "k": part.num_selected,
        "parameters": done.parameters,
        "parameters_before": done.whole,
        "bytes": done.num_bytes,
        "usage": done.usage,
        "peak_memory": peak_memory(),
        "notes": done.notes,
    }


def lines(done: Extracted, *, dry_run: bool) -> list[str]:
    """What the user reads."""
    from erniecore.api.planning import size_text

    part, sizes = done.part, done.sizes
    found = [f"layers: {' '.join(map(str, part.layers))} of {sizes.layers}"]
    if sizes.experts:
        count = sizes.experts if part.experts is None else len(part.experts[0])
        by = f", by usage {done.usage}" if done.usage else ""
        found.append(f"experts: {count} of {sizes.experts} in each layer, {part.num_selected} per token{by}")
    share = done.parameters / done.whole
    size = f"{done.parameters:,} of {done.whole:,} parameters ({share:.0%}), {size_text(done.num_bytes)}"
    found.append(f"{done.path}: {'would have ' if dry_run else ''}{size}; peak memory {size_text(peak_memory())}")
    return found


def peak_memory() -> int:
    """Bytes that this process had resident at most."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
