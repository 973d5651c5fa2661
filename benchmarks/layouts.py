"""``python -m benchmarks.layouts``: one table of layouts: largest relative difference of any loss from that of one process,
time of a step, bytes that rank 0 sends per step, and the most bytes that tensors held on any rank. Layouts of two
processes also say how much faster they are than one process, of one thread each; twice as fast is the ideal of two
cores, and the line ``alone, 2 threads`` is what the same cores do without a second process.

All do the same steps of the same rows: ``ROWS`` per step. Every layout runs in fresh processes. Times of layouts with
more processes than the machine has cores mean little.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROWS, STEPS, LENGTH = 8, 6, 256
RANK = Path(__file__).with_name("layout_rank.py")
MODELS = {
    "dense": (
        "ernie45",
        "hidden_size=192,intermediate_size=512,num_hidden_layers=4,num_attention_heads=6,num_key_value_heads=2,"
        "head_dim=32",
    ),
    "moe": ("ernie45-moe", "hidden_size=128,num_hidden_layers=4,num_attention_heads=4,num_key_value_heads=2"),
}
#: model, degrees; replicas (data x sharding) share the rows
LAYOUTS: tuple[tuple[str, Mapping[str, int]], ...] = (
    ("dense", {}),
    ("dense", {"data": 2}),
    ("dense", {"sharding": 2}),
    ("dense", {"sharding": 2, "sharding_stage": 2}),
    ("dense", {"sharding": 2, "sharding_stage": 3}),
    ("dense", {"tensor": 2}),
    ("dense", {"tensor": 2, "sequence": True}),
    ("dense", {"context": 2}),
    ("dense", {"pipeline": 2}),
    ("dense", {"pipeline": 2, "chunks": 2}),
    ("moe", {}),
    ("moe", {"data": 2}),
    ("moe", {"data": 2, "expert": 2}),
    ("dense", {"data": 2, "tensor": 2}),
    ("dense", {"sharding": 2, "sharding_stage": 2, "tensor": 2}),
    ("dense", {"pipeline": 2, "data": 2}),
    ("dense", {"pipeline": 2, "tensor": 2}),
    ("moe", {"data": 2, "expert": 2, "tensor": 2}),
)


@dataclass(frozen=True)
class Found:
    """What one layout did, or why it did not."""

    label: str
    model: str
    processes: int
    losses: Sequence[float] = ()
    seconds: float = 0.0
    sent: float = 0.0
    memory: int = 0
    refused: str = ""


def prepared(place: Path, models: Mapping[str, tuple[str, str]] = MODELS) -> None:
    """Create the models, by directory the plugin and the size, and the data."""
    from erniecore_model_init.new_model import init_model
    from erniecore_text.training import train

    texts = [f"{a} plus {b} is {a + b}, and that is that" for a in range(40) for b in range(40)]
    (place / "tokenizer").mkdir()
    train([*texts, *["the quick brown fox jumps over lazy dogs"] * 9], 400).save(place / "tokenizer")
    for name, (model, size) in models.items():
        init_model(model, size, place / "tokenizer", place / name, seed_value=1)
    rows = ({"messages": [{"role": "user", "content": t}, {"role": "assistant", "content": t}]} for t in texts)
    (place / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def words_of(place: Path, out: Path, model: str, degrees: Mapping[str, int]) -> list[str]:
    """``section.key=value`` of one layout."""
    replicas = degrees.get("data", 1) * degrees.get("sharding", 1)
    split = [f"parallel.{key}={str(value).lower()}" for key, value in degrees.items()]
    return [
        f"model.name={MODELS[model][0]}",
        f"model.path={place / model}",
        "method.name=sft",
        f"data.train={place / 'train.jsonl'}",
        f"data.max_seq_len={LENGTH}",
        "train.batch_size=1",
        f"train.accumulation={ROWS // replicas}",
        "train.learning_rate=3e-4",
        f"train.max_steps={STEPS}",
        "checkpoint.export=false",
        f"run.out={out}",
        "log.report=false",
        *(["parallel.name=hybrid", *split] if split else []),
    ]


def measured(place: Path, model: str, degrees: Mapping[str, int], threads: int = 1) -> Found:
    """One layout in fresh processes."""
    from erniecore_conformance.expect import CheckFailed
    from erniecore_conformance.processes import on_ranks

    count = 1
    for axis in ("data", "sharding", "tensor", "context", "pipeline"):
        count *= degrees.get(axis, 1)
    label = " x ".join(f"{axis} {n}" for axis, n in degrees.items()) or "alone"
    label = label.replace("sharding_stage", "stage") + (f", {threads} threads" if threads > 1 else "")
    out = place / f"{model}-{label.replace(' ', '')}"
    try:
        found = on_ranks(count, f"{RANK}:ran", words_of(place, out, model, degrees), threads=threads)
    except CheckFailed as error:
        return Found(label, model, count, refused=str(error).splitlines()[-1][-120:])
    refused = next((text for _, text in found if text), "")
    if refused:
        return Found(label, model, count, refused=refused[:120])
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines() if line]
    steps = [event for event in events if event["event"] == "step"]
    return Found(
        label,
        model,
        count,
        losses=[step["loss"] for step in steps],
        seconds=median(step["seconds"] for step in steps[1:]),
        sent=median(step.get("bytes_sent", 0) for step in steps[1:]),
        memory=max(memory for memory, _ in found),
    )


def table(found: Sequence[Found]) -> str:
    """As Markdown. Speed-up: time of one process with one thread over that of the layout."""
    alone = {f.model: f for f in found if f.label == "alone"}
    lines = [
        "| model | layout | processes | loss difference | step | speed-up (of ideal) | sent per step | peak per rank |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for f in found:
        if f.refused:
            lines.append(f"| {f.model} | {f.label} | {f.processes} | not run: {f.refused} | | | | |")
            continue
        reference = alone[f.model]
        apart = max(abs(a - b) / abs(b) for a, b in zip(f.losses, reference.losses, strict=True))
        faster = reference.seconds / f.seconds
        cores = 2 if f.processes > 1 or "threads" in f.label else 1
        speed = f"{faster:.2f} ({faster / cores:.0%})" if f.processes <= 2 else "-"
        lines.append(
            f"| {f.model} | {f.label} | {f.processes} | {apart:.1e} | {1000 * f.seconds:.0f} ms | {speed} "
            f"| {f.sent / 2**20:.2f} MiB | {f.memory / 2**20:.1f} MiB |"
        )
    return "\n".join(lines)


def run_all(processes: int) -> list[Found]:
    """Every layout of at most so many processes; and one process with two threads."""
    with tempfile.TemporaryDirectory(prefix="layouts-") as directory:
        place = Path(directory)
        prepared(place)
        found = []
        for model, degrees in LAYOUTS:
            one = measured(place, model, degrees)
            if one.processes <= processes:
                found.append(one)
                print(f"{one.model} {one.label}: {one.refused or f'{one.seconds:.3f} s'}", flush=True)
            if not degrees:
                found.append(measured(place, model, degrees, threads=2))
        return found


def measure(args: argparse.Namespace) -> str:
    """The part ``layouts`` of ``benchmarks.run``: two processes."""
    return "## Layouts, and scaling from one process to two\n\n" + table(run_all(2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=4, help="at most so many")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(table(run_all(args.processes)))


if __name__ == "__main__":
    main()
