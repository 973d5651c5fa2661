"""ERNIEKit's own files, pointed at a tiny model, train through ``ernie run OLD.yaml`` with the settings that they mean."""

import json
import math
from pathlib import Path

import pytest
from erniecore_checkpoint.reader import load_checkpoint

from erniecore.config.compose import load

CONFIGS = Path(__file__).parents[1] / "fixtures/erniekit/configs/ERNIE-4.5-0.3B"


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def old(home, tmp_path, monkeypatch):
    """``old("sft/run_sft_lora_8k.yaml", key=value)``: a published file with the paths of this machine and other values."""
    sums = [(a, b) for a in range(8) for b in range(8)]
    for part, some in (("train", sums), ("eval", sums[::8])):
        write(tmp_path / f"sft-{part}.jsonl", [{"src": [f"{a} plus {b}"], "tgt": [str(a + b)]} for a, b in some])
        pairs = [
            {"src": [f"{a} plus {b}"], "tgt": [], "response": [[str(a + b)], ["31"]], "sort": [1, 0]} for a, b in some
        ]
        write(tmp_path / f"dpo-{part}.jsonl", pairs)
        write(tmp_path / f"pt-{part}.jsonl", [{"tgt": [f"{a} plus {b} {a + b}"]} for a, b in some])
    monkeypatch.chdir(tmp_path)

    def make(name, **changes):
        text = (CONFIGS / name).read_text().replace("./examples/data/", "./")
        given = {
            "model_name_or_path": home / "base",
            "max_seq_len": 64,
            "max_steps": 6,
            "gradient_accumulation_steps": 2,
            "warmup_steps": 2,
            **changes,
        }
        lines = [line for line in text.splitlines() if line.partition(":")[0] not in given]
        (tmp_path / "old.yaml").write_text("\n".join([*lines, *(f"{k}: {v}" for k, v in given.items())]) + "\n")
        return tmp_path / "old.yaml"

    return make


def events(out, kind):
    rows = [json.loads(line) for line in (Path(out) / "events.jsonl").read_text().splitlines()]
    return [row for row in rows if row["event"] == kind]


def test_fine_tuning_with_lora(ernie, old, tmp_path):
    file = old("sft/run_sft_lora_8k.yaml", learning_rate="1.0e-2", lora_rank=4)
    outcome = ernie("run", file, "output_dir=./out", "log.report=false")
    assert outcome.code == 0, outcome.err
    steps = events(tmp_path / "out", "step")
    assert [step["lr"] for step in steps[:3]] == pytest.approx([0.005, 0.01, 0.01])  # two steps of warm-up, then cosine
    assert steps[-1]["lr"] == pytest.approx(0.01 * (1 + math.cos(math.pi * 3 / 4)) / 2)
    assert steps[-1]["loss"] < steps[0]["loss"]
    adapter = json.loads((tmp_path / "out/adapter/adapter_config.json").read_text())
    assert (adapter["r"], adapter["lora_alpha"]) == (4, 8.0)
    warnings = " ".join(event["message"] for event in events(tmp_path / "out", "warning"))
    assert "is an ERNIEKit file" in warnings
    assert "device cpu has no bfloat16" in warnings
    settings = load(tmp_path / "out/resolved.yaml", environ={}).settings
    assert settings.plugins["adapter"] == "lora"
    assert (settings.adapter.rank, settings.adapter.resolved_alpha) == (4, 8.0)
    assert (settings.train.batch_size, settings.train.accumulation, settings.train.weight_decay) == (1, 2, 0.01)
    assert (settings.run.seed, settings.data.packing, settings.train.precision) == (23, "greedy", "float32")
    assert settings.data.train[0].format == "erniekit"


def test_the_trap_of_fine_tuning_trains_everything(ernie, old, tmp_path):
    file = old("sft/run_sft_8k.yaml", lora="True")
    outcome = ernie("run", file, "output_dir=./out", "max_steps=1", "log.report=false")
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "out/model").is_dir()
    assert not (tmp_path / "out/adapter").exists()
    warnings = " ".join(event["message"] for event in events(tmp_path / "out", "warning"))
    assert "lora: true has no effect: fine_tuning is full" in warnings


def test_preferences_with_lora(ernie, old, tmp_path):
    file = old("dpo/run_dpo_lora_8k.yaml", learning_rate="1.0e-2", min_lr=0, lora_rank=4, lora_alpha=8)
    outcome = ernie("run", file, "run.out=./out", "log.report=false")
    assert outcome.code == 0, outcome.err
    first, *_, last = events(tmp_path / "out", "step")
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-3)  # the policy is its reference
    assert last["rewards/margins"] > first["rewards/margins"]
    settings = load(tmp_path / "out/resolved.yaml", environ={}).settings
    assert settings.plugins["method"] == "dpo"
    assert (settings.method.beta, settings.method.length_normalization) == (0.1, "balanced")
    assert settings.plugins["adapter"] == "lora-plus"  # rslora and LoRA+ together: alpha * sqrt(rank)
    assert (settings.adapter.alpha, settings.adapter.ratio) == (16.0, 12.0)
    assert settings.train.layer_lr_decay == 0.5


def test_pretraining(ernie, old, tmp_path):
    outcome = ernie("run", old("pt/run_pt_8k.yaml", learning_rate="1.0e-3"), "run.out=./out", "log.report=false")
    assert outcome.code == 0, outcome.err
    steps = events(tmp_path / "out", "step")
    assert steps[-1]["loss"] < steps[0]["loss"]
    report = json.loads((tmp_path / "out/data_report.json").read_text())
    assert report["train"]["kept"] == 64


def test_old_and_new_file_train_alike(ernie, old, tmp_path):
    """Bit for bit: the imported file is the old file."""
    file = old("sft/run_sft_8k.yaml", max_steps=3)
    assert ernie("config", "import", file, "--out", tmp_path / "new.yaml").code == 0
    for source, out in ((file, "a"), (tmp_path / "new.yaml", "b")):
        outcome = ernie("run", source, f"run.out={tmp_path / out}", "log.report=false")
        assert outcome.code == 0, outcome.err
    left, right = (load_checkpoint(tmp_path / out / "ckpt/step-00000003").tensors["model"] for out in ("a", "b"))
    assert left.keys() == right.keys()
    assert all((left[name] == right[name]).all() for name in left)
