"""An example of LLaMA-Factory, pointed at a tiny model, trains through ``ernie run OLD.yaml`` with the settings it means."""

import json
from pathlib import Path

import pytest

from erniecore.config.compose import load

EXAMPLES = Path(__file__).parents[2] / "plugins/importers/llamafactory/tests/fixtures"


@pytest.fixture
def old(home, tmp_path, monkeypatch):
    """The published example of LoRA as it is, beside data sets of its names."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/dataset_info.json").write_bytes((EXAMPLES / "dataset_info.json").read_bytes())
    rows = [{"instruction": f"{a} plus {b}", "input": "", "output": str(a + b)} for a in range(6) for b in range(6)]
    for name in ("identity", "alpaca_en_demo"):
        (tmp_path / f"data/{name}.json").write_text(json.dumps(rows))
    monkeypatch.chdir(tmp_path)
    return EXAMPLES / "train_lora_qwen3_lora_sft.yaml"


def test_an_example_of_lora_trains(ernie, old, home, tmp_path):
    words = (f"model_name_or_path={home / 'base'}", "output_dir=out", "cutoff_len=64", "max_steps=2")
    more = ("gradient_accumulation_steps=2", "preprocessing_num_workers=0", "log.report=false")
    outcome = ernie("run", old, *words, *more)
    assert outcome.code == 0, outcome.err
    events = [json.loads(line) for line in (tmp_path / "out/events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "step"] == [1, 2]
    adapter = json.loads((tmp_path / "out/adapter/adapter_config.json").read_text())
    assert (adapter["r"], adapter["lora_alpha"]) == (8, 16.0)
    settings = load(tmp_path / "out/resolved.yaml", environ={}).settings
    assert (settings.plugins["method"], settings.plugins["adapter"]) == ("sft", "lora")
    assert [source.path for source in settings.data.train] == ["data/identity.json", "data/alpaca_en_demo.json"]
    assert (settings.data.packing, settings.data.max_seq_len, settings.train.schedule) == ("none", 64, "cosine")
    assert (settings.train.learning_rate, settings.train.warmup_ratio, settings.train.recompute) == (1e-4, 0.1, "full")
    warnings = " ".join(event["message"] for event in events if event["event"] == "warning")
    assert "is a LLaMA-Factory file" in warnings
    assert "not qwen3_nothink" in warnings
