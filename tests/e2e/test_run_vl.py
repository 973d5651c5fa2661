"""Text on a vision-language model: the text part is trained, the vision part is written as it was read; rows with pictures
are refused by name."""

import json

import numpy as np
import pytest
from erniecore_model_init.new_model import init_model
from safetensors.numpy import load_file

from erniecore.errors import DataError

SIZE = "hidden_size=32,intermediate_size=64,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2"


@pytest.fixture(scope="module")
def base(home, tmp_path_factory):
    return init_model("ernie45-vl", SIZE, home / "tok", tmp_path_factory.mktemp("vl") / "base", seed_value=1).path


def of_vision(name, experts=8):
    parts = name.split(".")
    number = int(parts[parts.index("experts") + 1]) if "experts" in parts else 0
    return "vision_model" in name or "resampler" in name or name.endswith("weight_1") or number >= experts


def changed(runner, base, **changes):
    result = runner.run(**{"model__name": "ernie45-vl", "model__path": base, "train__max_steps": 3, **changes})
    losses = [event["loss"] for event in runner.events("step")]
    assert losses[-1] < losses[0]
    return result


def test_all_of_the_text_part_and_nothing_else_is_trained(runner, base):
    changed(runner, base)
    before = load_file(base / "model.safetensors")
    after = load_file(runner.directory / "out" / "model" / "model.safetensors")
    same = {name for name, array in after.items() if np.array_equal(array, before[name])}
    assert same == {name for name in before if of_vision(name)}


def test_a_low_rank_adapter_is_one_of_the_text_part(runner, base):
    changed(runner, base, adapter__name="lora", adapter__rank=2, train__learning_rate=0.02)
    names = load_file(runner.directory / "out" / "adapter" / "adapter_model.safetensors")
    assert names
    assert not any(of_vision(name.replace("base_model.model.", "")) for name in names)


def test_a_row_with_a_picture_is_refused_by_its_line(runner, base):
    turns = [{"role": "user", "content": "What is this?"}, {"role": "assistant", "content": "A cat."}]
    rows = [{"messages": turns}, {"messages": turns, "images": ["cat.png"]}]
    (runner.directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError) as caught:
        runner.run(model__name="ernie45-vl", model__path=base, data__train=runner.directory / "rows.jsonl")
    assert "rows.jsonl:2" in str(caught.value)
    assert "images" in str(caught.value)
