"""Seconds from a command to the first training step that it prints, ours and PaddleFormers', in turns A B A B …: the same
model directory (dense-S), texts, length, batch and learning rate, every process from nothing, with a warm file cache.

Called by ``python -m benchmarks.startup --peers ernie,pf``. ``pf`` is ``python -m paddleformers.cli.launcher train``, the
process that trains; ``paddleformers-cli`` starts it behind two others (``pf-cli``), and fails without a GPU unless an accelerator
is named.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.compare import environment_of
from benchmarks.machine import CORES, busy_seconds
from benchmarks.texts import paragraphs, write_text

SIZE = (
    "hidden_size=256,intermediate_size=768,num_hidden_layers=6,num_attention_heads=8,num_key_value_heads=2,head_dim=32"
)
LIMIT = 300.0
OURS = {"data.max_seq_len": 512, "train.batch_size": 4, "train.max_steps": 3, "train.learning_rate": 1e-4}
THEIRS = {
    "train_dataset_type": "erniekit",
    "eval_dataset_type": "erniekit",
    "train_dataset_prob": "1.0",
    "eval_dataset_prob": "1.0",
    "max_seq_len": 512,
    "packing": False,
    "mix_strategy": "concat",
    "template": "ernie_nothink",
    "stage": "SFT",
    "fine_tuning": "full",
    "do_train": True,
    "do_eval": False,
    "per_device_train_batch_size": 4,
    "max_steps": 3,
    "logging_steps": 1,
    "learning_rate": 1e-4,
    "save_strategy": "no",
    "overwrite_output_dir": True,
    "disable_tqdm": True,
    "report_to": [],
    # what it needs on a CPU
    "_attn_implementation": "sdpa",
    "device": "cpu",
    "amp_master_grad": False,
    "bf16": False,
    "fp16_opt_level": "O1",
    "load_checkpoint_format": "flex_checkpoint",
}


class Start(NamedTuple):
    """A command, the line that it prints after the first step, and what its environment has besides ours."""

    command: Sequence[str]
    first: str
    environ: dict[str, str]


def prepare(home: Path) -> dict[str, Start]:
    """Model, data and settings of everybody in ``home``; system -> how it is started."""
    ernie = [sys.executable, "-m", "erniecore"]
    for words in (
        ["tokenizer", "train", str(write_text(home / "text.txt")), "--vocab-size", "4096", "--out", str(home / "tok")],
        ["model", "init", "--model", "ernie45", "--size", SIZE, "--tokenizer", str(home / "tok"), "--out", str(home / "base")],
    ):  # fmt: skip
        subprocess.run([*ernie, *words], check=True, capture_output=True)
    texts = [text for text in paragraphs() if len(text) < 400]  # that fit
    pairs = [(texts[i], " ".join(texts[i + 1 : i + 3])) for i in range(0, 256 * 3, 3)]
    roles = ("user", "assistant")
    ours = [{"messages": [{"role": r, "content": t} for r, t in zip(roles, pair, strict=True)]} for pair in pairs]
    theirs = [{"src": [question], "tgt": [answer]} for question, answer in pairs]
    for name, rows in (("ours", ours), ("theirs", theirs)):
        (home / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    shutil.copytree(home / "base", home / "base-pf")
    config = json.loads((home / "base-pf" / "config.json").read_text(encoding="utf-8"))
    (home / "base-pf" / "config.json").write_text(json.dumps({**config, "fuse_rms_norm": False}), encoding="utf-8")
    data = {f"{part}_dataset_path": str(home / "theirs.jsonl") for part in ("train", "eval")}
    settings = {**THEIRS, **data, "model_name_or_path": str(home / "base-pf"), "output_dir": str(home / "out-pf")}
    (home / "pf.yaml").write_text(json.dumps(settings), encoding="utf-8")
    words = ["--model", str(home / "base"), "--method", "sft", "--data", str(home / "ours.jsonl")]
    words += ["--out", str(home / "out"), "log.every=1", *(f"{key}={value}" for key, value in OURS.items())]
    python = Path(environment_of("pf"))
    accelerator = {"CUDA_VISIBLE_DEVICES": "0", "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    train = ["train", str(home / "pf.yaml")]
    return {
        "ernie": Start([*ernie, "run", *words], r"^step +1/", {}),
        "pf": Start([str(python), "-m", "paddleformers.cli.launcher", *train], r"\bloss: \d.*global_step", accelerator),
        "pf-cli": Start([str(python.parent / "paddleformers-cli"), *train], r"\bloss: \d.*global_step", accelerator),
    }


def first_step(start: Start, home: Path) -> dict[str, Any]:
    """Wall seconds until the line of the first step, CPU seconds of all of its processes until then, and ``others``, the
    share of the machine that other processes took."""
    for name in ("out", "out-pf"):
        shutil.rmtree(home / name, ignore_errors=True)
    busy, began = busy_seconds(), time.perf_counter()
    process = subprocess.Popen(
        start.command,
        cwd=home,
        env={**own_environment(), **start.environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    lines = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if re.search(start.first, line):
                wall, cpu = time.perf_counter() - began, session_seconds(process.pid)
                others = max(0.0, busy_seconds() - busy - cpu) / (CORES * wall)
                return {"wall_s": round(wall, 2), "cpu_s": round(cpu, 2), "others": round(others, 3)}
            if time.perf_counter() - began > LIMIT:
                break
        return {"error": "".join(lines)[-1500:]}
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def own_environment() -> dict[str, str]:
    """Ours without settings of runs: what is measured is the command as it stands."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ERNIE_")}


def session_seconds(session: int) -> float:
    """CPU seconds of the processes of a session, and of their finished children."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[3]) == session:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def compare(peers: Sequence[str], rounds: int, home: Path, log: Path) -> str:
    """All in turns; the table of medians, with ours as a share of each."""
    starts = prepare(home)
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    with log.open("a", encoding="utf-8") as stream:
        for turn in range(-1, rounds):  # the first turn fills the file cache
            for name in peers if turn % 2 else reversed(peers):
                record = first_step(starts[name], home)
                stream.write(json.dumps({"peer": name, "turn": turn, **record}) + "\n")
                if turn >= 0:
                    found[name].append(record)
    return table(found)


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    """Medians; ``ours of it``: our share of a peer's seconds."""
    lines = [
        "## From the command to the first step",
        "",
        "| system | s | CPU s | ours of it | of its CPU s | others |",
        "|---|---|---|---|---|---|",
    ]
    medians = {
        name: {k: statistics.median(r[k] for r in records) for k in ("wall_s", "cpu_s", "others")}
        for name, records in found.items()
        if all("error" not in r for r in records)
    }
    ours = medians.get("ernie")
    for name, records in found.items():
        if name not in medians:
            last = next((r["error"].strip().splitlines() for r in records if "error" in r), None) or ["no output"]
            lines.append(f"| {name} | does not start: {last[-1][:90]} | | | | |")
            continue
        m = medians[name]
        shares = [""] * 2 if ours is None or name == "ernie" else [f"{ours[k] / m[k]:.0%}" for k in ("wall_s", "cpu_s")]
        lines.append(f"| {name} | {m['wall_s']:.2f} | {m['cpu_s']:.2f} | {' | '.join(shares)} | {m['others']:.2f} |")
    return "\n".join(lines)
