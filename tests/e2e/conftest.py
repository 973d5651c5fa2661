"""A tiny model directory, data files and settings, made once; runs in this process or as real subprocesses."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest


def write_rows(path, count, seed, *, template="{a} plus {b}"):
    """Additions as conversations."""
    rng = random.Random(seed)
    with path.open("w") as file:
        for _ in range(count):
            a, b = rng.randint(0, 30), rng.randint(0, 30)
            turns = [
                {"role": "user", "content": template.format(a=a, b=b)},
                {"role": "assistant", "content": f"{a + b}"},
            ]
            file.write(json.dumps({"messages": turns}) + "\n")
    return path


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """A directory with ``base`` (a model of 60 thousand parameters), ``train.jsonl`` and ``eval.jsonl``."""
    from erniecore.data.tokenizer_train import train
    from erniecore.engine.new_model import init_model

    home = tmp_path_factory.mktemp("e2e")
    texts = [f"{a} plus {b} {a + b}" for a in range(31) for b in range(31)] + [
        "the quick brown fox jumps over dogs"
    ] * 9
    (home / "tok").mkdir()
    train(texts, 320).save(home / "tok")
    size = (
        "hidden_size=32,intermediate_size=64,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2,head_dim=8"
    )
    init_model("ernie45", size, home / "tok", home / "base", seed_value=1)
    write_rows(home / "train.jsonl", 90, 1)
    write_rows(home / "eval.jsonl", 12, 2)
    return home


class Runner:
    """Runs with the same settings in one temporary directory."""

    def __init__(self, home, directory):
        self.home, self.directory = home, directory

    def words(self, out="out", **changes):
        keys = {
            "model.path": self.home / "base",
            "data.train": self.home / "train.jsonl",
            "data.max_seq_len": 64,
            "train.batch_size": 2,
            "train.learning_rate": 3e-3,
            "train.max_steps": 8,
            "run.out": self.directory / out,
            "log.report": "false",
            **{key.replace("__", "."): value for key, value in changes.items()},
        }
        return ["model.name=ernie45", "method.name=sft", *(f"{k}={v}" for k, v in keys.items() if v is not None)]

    def run(self, out="out", **changes):
        """In this process; returns the result."""
        import erniecore

        return erniecore.run(overrides=self.words(out, **changes), console="none")

    def start(self, out="out", **changes):
        """``ernie run`` as a process of its own."""
        environ = {k: v for k, v in os.environ.items() if not k.startswith("ERNIE_")}
        return subprocess.Popen(
            [sys.executable, "-m", "erniecore", "run", *self.words(out, **changes)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.directory,
            env={**environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"},
        )

    def signal_at(self, step, number, out="out", **changes):
        """Start, send a signal once the line of ``step`` is printed; returns (exit code, stdout, stderr)."""
        process = self.start(out, **{"log__every": 1, **changes})
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith(f"step   {step}/"):
                process.send_signal(number)
                break
        rest, errors = process.communicate()
        return process.returncode, "".join(lines) + rest, errors

    def complete(self, out="out", **changes):
        """A process that runs to its end; what is compared bit for bit must not mix with runs in this process, where
        paddle may have been imported before the device could choose its code path."""
        process = self.start(out, **changes)
        _, errors = process.communicate()
        assert process.returncode == 0, errors

    def kill_at(self, step, out="out", **changes):
        """SIGKILL, really."""
        code, _, errors = self.signal_at(step, signal.SIGKILL, out, **changes)
        assert code == -signal.SIGKILL, errors

    def events(self, kind, out="out"):
        """Events of a kind, over all sessions; unreadable lines are passed over."""
        found = []
        for line in (self.directory / out / "events.jsonl").read_text().splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if event["event"] == kind:
                found.append(event)
        return found

    def curve(self, out="out"):
        """Step -> what must be equal bit for bit; the last line of a step counts."""
        return {e["step"]: (e["loss"], e["grad_norm"], e["lr"], e["tokens"]) for e in self.events("step", out)}

    def tensors(self, step, out="out"):
        """Everything that the checkpoint of ``step`` holds, as bytes."""
        from erniecore.checkpoint import load_checkpoint

        checkpoint = load_checkpoint(Path(self.directory / out / "ckpt" / f"step-{step:08d}"))
        return {(g, n): array.tobytes() for g, members in checkpoint.tensors.items() for n, array in members.items()}


@pytest.fixture
def runner(home, tmp_path):
    """A runner in a fresh directory."""
    return Runner(home, tmp_path)
