"""``ernie bench loader`` and ``ernie bench serve``: the two ends of a run, its data and decoding. Light; what is measured is in
``measure_loader`` and ``measure_serving``.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from erniecore.api import UsageError, counted
from erniecore.api.command import (
    NOTHING,
    Arguments,
    Chosen,
    JsonOption,
    opens_models,
    show,
    show_json,
    show_table,
    split_arguments,
    takes,
)


@opens_models
@takes("model", "method", "device", "data", "format")
def loader(
    args: Arguments = None,
    chosen: Chosen = NOTHING,
    steps: Annotated[int, typer.Option("--steps", min=1, metavar="N", help="Steps whose batches are made.")] = 20,
    as_json: JsonOption = False,
) -> int:
    """Time the data path of a run (arguments as for `ernie run`): read, encode, pack, collate. `ernie plan` uses the result.

    `data.workers` processes encode before the first step. Batches are collated during steps, in the training process.
    """
    from erniecore_planner.cost_files import loader_path, make_data, store_one
    from erniecore_planner.measure_loader import measure_loader

    file, overrides = split_arguments(args)
    found = measure_loader(file, overrides, chosen, steps)
    path = store_one(loader_path(os.environ), make_data, found.rate)
    if as_json:
        show_json({**asdict(found), "file": str(path)})
        return 0
    rate, spent = found.rate, found.seconds
    table = [
        ("read and encode", f"{spent['encode']:.3g} s", f"{rate.tokens_per_s:,.0f}", f"{rate.rows_per_s:,.0f}"),
        ("pack", f"{spent['pack']:.3g} s", f"{rate.pack_tokens_per_s:,.0f}", ""),
        ("batches", f"{spent['batches']:.3g} s", f"{rate.batch_tokens_per_s:,.0f}", ""),
    ]
    show_table(("part", "time", "tokens/s", "rows/s"), table)
    text = (
        f"{counted(found.rows, 'row', ',')}, {counted(found.tokens, 'token', ',')}, {counted(rate.workers, 'worker')}"
    )
    show(f"{text}; rows are {rate.fill:.1%} full; kept in {path}")
    share = f", {found.step / found.expected:.1%} of what a step takes" if found.expected else ""
    show(f"batches of a step: {1e3 * found.step:.3g} ms{share}; nothing else runs meanwhile")
    return 0


@opens_models
def serve(
    model: Annotated[Path, typer.Option("--model", metavar="DIR", help="Model directory, or a run that has one.")],
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="Device plugin.")] = "cpu",
    dtype: Annotated[str, typer.Option("--dtype", metavar="DTYPE", help="Of the weights.")] = "float32",
    rows: Annotated[str, typer.Option("--rows", metavar="N,…", help="Prompts that are answered together.")] = "1,8",
    lengths: Annotated[str, typer.Option("--lengths", metavar="N,…", help="Tokens of a prompt.")] = "128,512",
    tokens: Annotated[int, typer.Option("--tokens", min=2, metavar="N", help="Of each answer.")] = 32,
    as_json: JsonOption = False,
) -> int:
    """Time generation as in `ernie generate` and servers: prefill, decoding steps and their percentiles."""
    from erniecore_planner.cost_files import make_serve, serve_path, store_one
    from erniecore_planner.measure_serving import measure_serving

    counts, sizes = numbers(rows, "--rows"), numbers(lengths, "--lengths")
    rate = measure_serving(model, device, dtype, rows=counts, lengths=sizes, tokens=tokens)
    path = store_one(serve_path(os.environ), make_serve, rate)
    if as_json:
        show_json({**asdict(rate), "file": str(path)})
        return 0
    show_table(("prompt", "prompt tokens/s"), [(f"{n:,}", f"{speed:,.0f}") for n, speed in rate.prefill])
    table = [(str(n), f"{n_:,}", f"{s:,.0f}", f"{1e3 * a:.3g}", f"{1e3 * b:.3g}") for n, n_, s, a, b in rate.decode]
    show_table(("rows", "prompt", "new tokens/s", "step ms, 50 %", "95 %"), table)
    show(f"{rate.model}, {rate.dtype}, on {rate.machine}; kept in {path}")
    return 0


def numbers(text: str, where: str) -> list[int]:
    """``1,8`` -> [1, 8]. Raises ``UsageError``."""
    args = text.split(",")
    if not all(word.strip().isdecimal() and int(word) for word in args):
        raise UsageError("not a list of numbers above 0", where=where, found=text, expected="such as 1,8")
    return sorted({int(word) for word in args})
