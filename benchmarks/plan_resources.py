"""``python -m benchmarks.plan_resources``: the accelerators that ERNIEKit's documentation names for each of its runs, and whether
`ernie plan` says that the run fits on them. Nothing is measured; prints a table in Markdown.

A row's model is a recipe of an installed plugin; a vision-language model is its text part with more bytes per parameter: its
second kind of experts and its tower are spread over all layers. Adapters have rank 32 on every matrix of attention and experts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from erniecore_planner.clusters import GB, Machines, uniform
from erniecore_planner.jobs import Job, total_parameters
from erniecore_planner.layout_search import Found, search

from erniecore import registry
from erniecore.api.command import layout_spaces
from erniecore.api.planning import LayoutSpace
from erniecore.config.yaml import parse
from erniecore.types.shape import DecoderShape

RANK = 32


@dataclass(frozen=True)
class Row:
    """A claim: ``accelerators`` devices with ``memory`` GB are enough. ``host``: GB of host memory that may hold optimizer
    state."""

    model: str
    what: str
    length: int
    accelerators: int
    memory: int = 80
    host: int = 0


KIB = 1024
ROWS = [
    Row("300b-a47b", "full", 8 * KIB, 96),
    Row("300b-a47b", "full", 32 * KIB, 112),
    Row("300b-a47b", "fp8", 8 * KIB, 16, host=2000),
    Row("300b-a47b", "lora wint4", 8 * KIB, 4),
    Row("300b-a47b", "lora wint4", 32 * KIB, 8),
    Row("300b-a47b", "dpo", 8 * KIB, 112),
    Row("300b-a47b", "dpo lora", 8 * KIB, 16),
    *(Row("21b-a3b", what, length, 8) for what in ("full", "dpo") for length in (8 * KIB, 32 * KIB, 128 * KIB)),
    Row("21b-a3b", "lora", 8 * KIB, 1),
    Row("21b-a3b", "dpo lora", 8 * KIB, 1),
    *(Row("0.3b", what, 8 * KIB, 1) for what in ("full", "lora", "dpo", "dpo lora")),
    Row("vl-424b", "lora", 32 * KIB, 16),
    Row("vl-424b", "lora wint4", 32 * KIB, 8),
    Row("vl-424b", "lora wint4", 128 * KIB, 16),
    *(Row("vl-28b", "full", length, 8) for length in (8 * KIB, 32 * KIB, 128 * KIB)),
    Row("vl-28b", "lora", 8 * KIB, 4),
    Row("300b-a47b", "full", 8 * KIB, 112, memory=96),  # Kunlunxin P800
    Row("300b-a47b", "lora", 8 * KIB, 16, memory=96),
    Row("300b-a47b", "full", 8 * KIB, 128, memory=64),  # Ascend 910B
    Row("300b-a47b", "lora", 8 * KIB, 16, memory=64),
]
#: runs that fit by our arithmetic only with optimizer state in the host's memory, which their table does not mention
TIGHT = [Row("vl-28b", "full", 128 * KIB, 8)]
#: runs that nobody claims, and that cannot be: half of what 16 bytes per parameter take
IMPOSSIBLE = [Row("300b-a47b", "full", 8 * KIB, 48), Row("21b-a3b", "full", 8 * KIB, 1)]
#: name -> (recipe of the text part, billions of parameters of all)
VISION = {"vl-28b": ("21b-a3b", 29.40), "vl-424b": ("300b-a47b", 423.53)}


def shape_of(name: str) -> DecoderShape:
    """Sizes of a model, without multi-token prediction, which fine-tuning does not run."""
    recipe = VISION[name][0] if name in VISION else name
    plugin: Any = registry.load("model", "ernie45" if recipe == "0.3b" else "ernie45-moe")
    text = (files(plugin.recipes) / f"{recipe}.yaml").read_text(encoding="utf-8")
    shape: DecoderShape = plugin.ernie_decoder_shape(architecture=parse(text, recipe).data["model"]["architecture"])
    return replace(shape, mtp_layers=())


def adapter_parameters(shape: DecoderShape) -> int:
    """Of updates of rank ``RANK`` on all matrices."""
    total = 0
    for layer in shape.layers:
        queries, keys = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
        total += 2 * (shape.hidden + queries) + 2 * (shape.hidden + keys) + 3 * (shape.hidden + layer.mlp)
        total += 3 * layer.experts * (shape.hidden + layer.expert)
    return RANK * total


def job_of(row: Row) -> Job:
    """The run of a row in bfloat16, one row per micro-batch and accelerator."""
    shape = shape_of(row.model)
    more = VISION[row.model][1] * 1e9 / total_parameters(shape) if row.model in VISION else 1.0
    job = Job(
        shape, row.length, 1, row.accelerators, weight=2 * more, gradient=2 * more, moments=8 * more, master=4 * more
    )
    if "lora" in row.what:
        weight = more * (0.56 if "wint4" in row.what else 2.0)
        job = replace(job, adapter=adapter_parameters(shape), ranks=7 * RANK * len(shape.layers), weight=weight)
    if row.what == "fp8":
        job = replace(job, weight=1.0, moments=4.0)
    if "dpo" in row.what:
        job = replace(job, forward=1, copies=0 if job.adapter else 1)
    return job


def space_of(job: Job) -> LayoutSpace:
    """What the strategy `hybrid` can run of a job's model."""
    return dict(layout_spaces(job.shape))["hybrid"]


def found_for(row: Row) -> Found:
    """What the search finds on exactly the claimed accelerators; rates are of no matter, so they are an H800's."""
    accelerator = Machines(1, 8, "", row.memory * GB, 445e12, 3.35e12, link=200 * GB, host_memory=row.host * GB)
    job = job_of(row)
    return search(job, space_of(job), uniform(row.accelerators, accelerator), [row.accelerators])


def main() -> None:
    from erniecore_planner.layout_plan import degrees_text

    print(
        "| model | run | row | accelerators they name | fits | most free memory with | free GB of one |\n"
        "|---|---|---|---|---|---|---|"
    )
    for row in ROWS:
        found = found_for(row)
        best = found.lowest_memory
        how, free = (degrees_text(best), best.free / GB) if best else ("", found.too_large[0].free / GB)
        length = f"{row.length // KIB}K"
        accelerators = f"{row.accelerators} x {row.memory} GB" + (f", {row.host} GB host" if row.host else "")
        print(
            f"| {row.model} | {row.what} | {length} | {accelerators} | {'yes' if best else 'NO'} | {how} | {free:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
