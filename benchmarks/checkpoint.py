"""``python -m benchmarks.checkpoint [speed] [stall] [--mib 1200 --rounds 3 --dir DIR]``: what checkpoints cost.

``speed``: a state of ``--mib`` (weights and two moments, float32) saved and loaded in turns by erniecore (hashed, on the
disk, complete or absent), by ``safetensors`` (written, then synced by us, so that the disk is in both), and by
``paddle.distributed.save_state_dict`` (not synced by it; synced by us too). Loading: into tensors that exist; erniecore
with and without hashing every byte first.

``stall``: a real run whose state is as large, saving in the background: how long the training waits for the copy, how much
slower steps are while a checkpoint is written, and what share of the run both are at one save per ten minutes.
Prints JSON lines.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: seconds between two saves, for the reported fraction of training time
BETWEEN = 600.0
WIDTH = 1024


def state(mib: int) -> dict[str, Any]:
    """Name -> tensor, 4 MiB each, two moments per weight."""
    import paddle

    names = [f"layers.{i}.weight" for i in range(mib // 12)]
    return {n + end: paddle.randn([WIDTH, WIDTH]) for n in names for end in ("", ".first", ".second")}


def sync(directory: Path) -> None:
    """Everything below ``directory`` onto the disk."""
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def save_ours(tensors: dict[str, Any], place: Path) -> None:
    """As a run does, without its other state."""
    from concurrent.futures import ThreadPoolExecutor

    from erniecore_checkpoint.parts import PartWriter
    from erniecore_checkpoint.writer import Save

    from erniecore.engine.process_group import SingleProcess
    from erniecore.engine.training.gather import LocalShard, assign, write_shards
    from erniecore.types.process_group import ShardSpec

    groups = {"model": {name: LocalShard(t, ShardSpec(tuple(t.shape))) for name, t in tensors.items()}}
    plan, save = assign(SingleProcess(), groups), Save(place, 1, {}, 2)
    with ThreadPoolExecutor(1) as executor:
        part = PartWriter(save.begin(plan.num_bytes), plan.of(0), executor, 256 << 20)
        write_shards(SingleProcess(), groups, plan, part, patient=False)
        files = {file.name: file for file in part.files}
    save.finish(files, {"model": list(files)})


def load_ours(tensors: dict[str, Any], place: Path, *, verify: bool) -> None:
    """Verified or not, into ``tensors``."""
    from erniecore_checkpoint.reader import load_checkpoint
    from erniecore_checkpoint.verified import _verified

    from erniecore.engine.optimizers.state import load_exactly

    _verified.clear()  # what this process wrote it would not hash again
    load_exactly(tensors, load_checkpoint(place / "step-00000001", verify=verify).tensors["model"], "state")


def save_safetensors(tensors: dict[str, Any], place: Path) -> None:
    """The library's own writer."""
    from safetensors.numpy import save_file

    place.mkdir()
    save_file({name: tensor.numpy() for name, tensor in tensors.items()}, place / "state.safetensors")
    sync(place)


def load_safetensors(tensors: dict[str, Any], place: Path) -> None:
    """The library's own reader."""
    from safetensors.numpy import load_file

    for name, array in load_file(place / "state.safetensors").items():
        tensors[name].set_value(array)


def save_paddle(tensors: dict[str, Any], place: Path) -> None:
    """Save with Paddle's distributed checkpoint."""
    import paddle.distributed as dist

    dist.save_state_dict(tensors, str(place))
    sync(place)


def load_paddle(tensors: dict[str, Any], place: Path) -> None:
    """Load with Paddle's distributed checkpoint."""
    import paddle.distributed as dist

    dist.load_state_dict(tensors, str(place))


#: name -> (save, loads by name)
SYSTEMS: dict[str, tuple[Callable[..., None], dict[str, Callable[..., None]]]] = {
    "erniecore": (
        save_ours,
        {
            "load": lambda tensors, place: load_ours(tensors, place, verify=True),
            "load, not verified": lambda tensors, place: load_ours(tensors, place, verify=False),
        },
    ),
    "safetensors": (save_safetensors, {"load": load_safetensors}),
    "paddle.distributed": (save_paddle, {"load": load_paddle}),
}


def speed(mib: int, rounds: int, directory: Path) -> None:
    """Each system once per round."""
    import paddle

    tensors = state(mib)
    size = sum(t.size * 4 for t in tensors.values()) / 1e9
    expected = {name: float(tensor.sum()) for name, tensor in list(tensors.items())[::20]}
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for name, (save, loads) in SYSTEMS.items():
            place = directory / name
            _timed(found, (name, "save"), lambda save=save, place=place: save(tensors, place))
            for what, load in loads.items():
                for tensor in tensors.values():
                    tensor.set_value(paddle.zeros_like(tensor))
                _timed(found, (name, what), lambda load=load, place=place: load(tensors, place))
                assert all(float(tensors[n].sum()) == value for n, value in expected.items()), name
            shutil.rmtree(place)
    for (name, what), times in found.items():
        row = {
            "system": name,
            "what": what,
            "seconds": [round(seconds, 2) for seconds, _ in times],
            "cpu_seconds": round(statistics.median(cpu for _, cpu in times), 2),
            "GB/s": round(size / statistics.median(seconds for seconds, _ in times), 3),
        }
        print(json.dumps(row), flush=True)


def _timed(
    found: dict[tuple[str, str], list[tuple[float, float]]], key: tuple[str, str], work: Callable[[], None]
) -> None:
    started, cpu = time.perf_counter(), time.process_time()
    work()
    found.setdefault(key, []).append((time.perf_counter() - started, time.process_time() - cpu))


def stall(mib: int, directory: Path) -> None:
    """A dense model with so many MiB of weights and moments; three saves behind the training."""
    from erniecore_model_init.new_model import init_model
    from erniecore_text.training import train

    import erniecore

    words = ["the quick brown fox jumps over lazy dogs", "pack my box with five dozen liquor jugs"]
    (directory / "tok").mkdir()
    train(words * 20, 340).save(directory / "tok")
    rows = [{"messages": [{"role": "user", "content": w}, {"role": "assistant", "content": w}]} for w in words * 50]
    (directory / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    layers = max(1, round(mib * 2**20 / 12 / (4 * WIDTH**2 + 3 * WIDTH * 4 * WIDTH)))
    size = f"hidden_size={WIDTH},intermediate_size={4 * WIDTH},num_hidden_layers={layers},num_attention_heads=8"
    init_model("ernie45", f"{size},num_key_value_heads=8,head_dim={WIDTH // 8}", directory / "tok", directory / "base")
    out = directory / "run"
    settings = {
        "model.path": directory / "base",
        "method.name": "sft",
        "data.train": directory / "train.jsonl",
        "data.max_seq_len": 64,
        "train.max_steps": 40,
        "train.batch_size": 1,
        "checkpoint.every": 10,
        "checkpoint.keep": 2,
        "checkpoint.final": "false",
        "checkpoint.export": "false",
        "log.report": "false",
        "run.out": out,
    }
    erniecore.run(overrides=[f"{key}={value}" for key, value in settings.items()], console="none")
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    print(json.dumps(_costs(events)), flush=True)


def _costs(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What saving cost the run."""
    saves = [e for e in events if e["event"] == "checkpoint"]
    steps = [e for e in events if e["event"] == "step"][2:]
    during, alone = [], []
    for step in steps:
        begun = [(s["time"] - s["seconds"] + s["stall"], s["time"]) for s in saves]
        writing = any(start < step["time"] and step["time"] - step["seconds"] < end for start, end in begun)
        (during if writing else alone).append(step["seconds"])
    usual = statistics.median(alone)
    slower = sum(during) - usual * len(during)
    stalls = [s["stall"] for s in saves]
    per_save = statistics.mean(stalls) + slower / len(saves)
    return {
        "GB": round(saves[0]["bytes"] / 1e9, 2),
        "stall_ms": [round(1000 * s) for s in stalls],
        "written_after_s": [round(s["seconds"], 1) for s in saves],
        "step_s": round(usual, 3),
        "step_s_while_writing": round(statistics.median(during), 3) if during else None,
        "lost_s_per_save": round(per_save, 2),
        "stall_share_at_10_min": f"{100 * statistics.mean(stalls) / BETWEEN:.3f} %",
        "lost_share_at_10_min": f"{100 * per_save / BETWEEN:.3f} %",
    }


def main() -> None:
    """Run the parts that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["speed", "stall"])
    parser.add_argument("--mib", type=int, default=1200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", default=None, help="where to write; a temporary directory of the system otherwise")
    options = parser.parse_args()
    for part in options.parts:
        with tempfile.TemporaryDirectory(dir=options.dir) as name:
            if part == "speed":
                speed(options.mib, options.rounds, Path(name))
            else:
                stall(options.mib, Path(name))


if __name__ == "__main__":
    main()
