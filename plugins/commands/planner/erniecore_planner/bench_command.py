"""``ernie bench``: measures this machine, for plans. What is measured is in ``measure_*.py``."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated

import typer

from erniecore.api.command import (
    NOTHING,
    Arguments,
    Chosen,
    JsonOption,
    new_group,
    opens_models,
    show,
    show_json,
    show_table,
    split_arguments,
    takes,
)
from erniecore.api.planning import seconds_text
from erniecore_planner import bench_data

app = new_group("Measure the speed of this machine, for the estimates of `ernie plan`.")


@app.callback()
def default() -> None:
    """Measure the speed of this machine, for the estimates of `ernie plan`."""


@app.command("matmul")
def matmul(
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="Device plugin.")] = "cpu",
    dtype: Annotated[str, typer.Option("--dtype", metavar="DTYPE", help="Of the operands.")] = "float32",
    seconds: Annotated[float, typer.Option("--seconds", min=0.01, help="Time per shape.")] = 0.5,
    as_json: JsonOption = False,
) -> int:
    """Measure matrix products on a device and save the best rate for the estimates of `ernie plan`."""
    from erniecore_planner.measure_matmul import measure_matmul
    from erniecore_planner.rates import rates_file, store_rate

    best, rows = measure_matmul(device, dtype, seconds)
    path = rates_file(os.environ)
    store_rate(path, best)
    if as_json:
        shapes = [{"shape": shape, "flops": flops} for shape, flops in rows]
        show_json({**asdict(best), "shapes": shapes, "file": str(path)})
        return 0
    table = [(" x ".join(map(str, shape)), f"{flops / 1e9:.1f}") for shape, flops in rows]
    show_table(("m x k x n", "GFLOP/s"), table)
    show(f"best {best.flops / 1e9:.1f} GFLOP/s {dtype} on {best.machine}; kept in {path}")
    return 0


@app.command("operators")
def operators(
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="Device plugin.")] = "cpu",
    dtype: Annotated[str, typer.Option("--dtype", metavar="DTYPE", help="Of the operands.")] = "float32",
    rounds: Annotated[int, typer.Option("--rounds", min=1, metavar="N", help="How often each is timed.")] = 10,
    as_json: JsonOption = False,
) -> int:
    """Measure the operators of training one by one, for the step times of `ernie plan`."""
    from erniecore_planner.cost_files import store_costs
    from erniecore_planner.measure_operators import measure_operators

    costs, found = measure_operators(device, dtype, rounds)
    path = store_costs(os.environ, costs)
    if as_json:
        show_json({**asdict(costs), "seconds": found, "file": str(path)})
        return 0
    table = [(f"product, smallest side {side}", f"{rate / 1e9:.1f} GFLOP/s") for side, rate in costs.products]
    table += [(f"attention, row of {n:,}", f"{both / 1e9:.1f} GFLOP/s with backward") for n, _, both in costs.attention]
    table += [(name, f"{1e9 * unit:.3g} ns") for name, unit in costs.units.items()]
    show_table(("operator", "rate, or time per element"), table)
    show(f"on {costs.machine}; kept in {path}")
    return 0


@app.command("comm")
def comm(
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="Device plugin.")] = "cpu",
    nproc: Annotated[int, typer.Option("--nproc", metavar="N", min=2, help="Processes on this machine.")] = 2,
    seconds: Annotated[float, typer.Option("--seconds", min=0.01, help="Time per message size.")] = 0.5,
    as_json: JsonOption = False,
) -> int:
    """Measure collectives between processes: latency and bandwidth, for `ernie plan --accelerators`."""
    from erniecore_planner.measure_comm import measure_links
    from erniecore_planner.rates import links_file, store_link

    link, rows = measure_links(device, nproc, seconds)
    path = links_file(os.environ)
    store_link(path, link)
    if as_json:
        show_json({**asdict(link), "rows": rows, "file": str(path)})
        return 0
    table = [(row["what"], f"{row['bytes'] / 1024:,.0f}", f"{1e3 * row['seconds']:.3g}") for row in rows]
    show_table(("collective", "KiB", "ms"), table)
    text = f"{1e6 * link.latency:.1f} us and {link.bandwidth / 1e9:.2f} GB/s between {nproc} processes"
    show(f"{text} on {link.machine}; kept in {path}")
    return 0


@app.command("train")
@opens_models
@takes("model", "method", "adapter", "quantizer", "device", "data", "format")
def train(
    args: Arguments = None,
    chosen: Chosen = NOTHING,
    steps: Annotated[int, typer.Option("--steps", min=1, metavar="N", help="Steps that are timed.")] = 8,
    as_json: JsonOption = False,
) -> int:
    """Time the steps of a run (arguments as for `ernie run`) and save their rate for the estimates of `ernie plan`."""
    from erniecore_planner.cost_files import store_timed
    from erniecore_planner.measure_training import measure_training
    from erniecore_planner.rates import rates_file, store_rate
    from erniecore_planner.text import flops_text

    file, overrides = split_arguments(args)
    found = measure_training(file, overrides, chosen, steps)
    rate, seconds, estimate = found.rate, found.seconds, found.estimate
    path = rates_file(os.environ)
    store_rate(path, rate)
    if found.timed is not None:
        store_timed(os.environ, found.timed)
    if as_json:
        show_json(
            {
                **asdict(rate),
                "seconds": seconds,
                "wall": found.wall,
                "full": found.full,
                "step_flops": estimate.step_flops,
                "timed": asdict(found.timed) if found.timed else None,
                "file": str(path),
            }
        )
        return 0
    share = f", {rate.flops / estimate.matmul_rate.flops:.0%} of matmul" if estimate.matmul_rate else ""
    middle = sorted(seconds)[len(seconds) // 2]
    show(f"{seconds_text(middle)} per step, {flops_text(rate.flops)}FLOP/s{share}, on {rate.machine}; kept in {path}")
    return 0


app.command("loader")(bench_data.loader)
app.command("serve")(bench_data.serve)
