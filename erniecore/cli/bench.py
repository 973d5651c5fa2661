"""``ernie bench``: measures this machine, for plans. What is measured is in ``erniecore/engine/bench.py``."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated

import typer

from erniecore.cli import render
from erniecore.cli.group import new_group
from erniecore.cli.options import JsonOption

app = new_group("Measure this machine; plans use what was measured.")


@app.callback()
def default() -> None:
    """Measure this machine; plans use what was measured."""


@app.command("matmul")
def matmul(
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="Device plugin.")] = "cpu",
    dtype: Annotated[str, typer.Option("--dtype", metavar="DTYPE", help="Of the operands.")] = "float32",
    seconds: Annotated[float, typer.Option("--seconds", min=0.01, help="Time per shape.")] = 0.5,
    as_json: JsonOption = False,
) -> int:
    """Measure matrix products on a device and keep the best rate, by which `ernie plan` tells times."""
    from erniecore.engine.bench import measure_matmul
    from erniecore.planning.rates import rates_file, store_rate

    best, rows = measure_matmul(device, dtype, seconds)
    path = rates_file(os.environ)
    store_rate(path, best)
    if as_json:
        shapes = [{"shape": shape, "flops": flops} for shape, flops in rows]
        render.show_json({**asdict(best), "shapes": shapes, "file": str(path)})
        return 0
    table = [(" x ".join(map(str, shape)), f"{flops / 1e9:.1f}") for shape, flops in rows]
    render.show_table(("m x k x n", "GFLOP/s"), table)
    render.show(f"best {best.flops / 1e9:.1f} GFLOP/s {dtype} on {best.machine}; kept in {path}")
    return 0
