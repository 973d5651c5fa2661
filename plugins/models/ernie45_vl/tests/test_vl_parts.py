"""Which parts are trained: gradients, moments, learning rates, the plan, and refusals; adapters of tower and resampler."""

import json

import numpy as np
import pytest
from erniecore_checkpoint.reader import load_checkpoint
from erniecore_ernie45_vl.config import VlConfig
from erniecore_ernie45_vl.parts import part_of

import erniecore
from erniecore.api import ConfigError

PARTS = ("text", "vision", "resampler", "vision_experts")


def settings(home, out, *more):
    return [
        f"model.path={home / 'base'}",
        "method=sft",
        f"data.train={home / 'rows.jsonl'}",
        "data.max_seq_len=96",
        "data.max_drop=0.05",
        "train.batch_size=2",
        "train.warmup_ratio=0",
        "train.schedule=constant",
        "train.learning_rate=0.01",
        "train.weight_decay=0",
        "train.max_grad_norm=0",
        "log.report=false",
        "checkpoint.every=1",
        f"run.out={out}",
        *more,
    ]


def tensors(out, step):
    found = load_checkpoint(out / "ckpt" / f"step-{step:08d}").tensors
    return {group: dict(members) for group, members in found.items()}


def events(out, name):
    lines = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == name]


def weights(model):
    return {name: parameter.numpy() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(
    ("parts", "factors"),
    [
        (PARTS, {"vision": 0.5, "resampler": 0.25, "vision_experts": 2.0}),
        (("vision", "resampler"), {}),
        (("resampler",), {"resampler": 0.5}),
    ],
)
def test_parts_learn_at_their_rates_and_frozen_ones_have_no_state(home, tmp_path, parts, factors):
    out = tmp_path / "run"
    words = [f"model.train={','.join(parts)}", f"model.lr_factors={json.dumps(factors)}"]
    erniecore.run(None, settings(home, out, *words, "train.max_steps=1", "train.accumulation=12"), console="none")
    before, after = (weights(erniecore.load_model(path)) for path in (home / "base", out / "model"))
    moved = {part: [] for part in PARTS}
    for name, values in after.items():
        if "e_score_correction_bias" not in name:
            moved[part_of(name)].append(np.abs(values - before[name]).max())
    for part, changes in moved.items():
        # the first step of AdamW moves a weight by the learning rate, or not at all
        expected = 0.01 * factors.get(part, 1.0) if part in parts else 0.0
        assert max(changes) == pytest.approx(expected, rel=1e-2), part
    state = [name for group, members in tensors(out, 1).items() if "optim" in group for name in members]
    assert state
    assert {part_of(name) for name in state} == set(parts)
    (start,) = events(out, "run_start")
    sizes = {part: sum(v.size for n, v in before.items() if part_of(n) == part) for part in PARTS}
    sizes["text"] -= sum(v.size for n, v in before.items() if "e_score_correction_bias" in n)
    assert start["trainable"] == sum(sizes[part] for part in parts)
    assert any(f"{start['trainable'] / 1000:.1f} k trainable" in line for line in map(str, start["plan"]))


def test_a_step_of_texts_alone_changes_nothing_of_a_frozen_text_part(home, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(line for line in (home / "rows.jsonl").read_text().splitlines() if "images" not in line))
    words = ["model.train=vision,resampler", f"data.train={rows}", "train.max_steps=2"]
    erniecore.run(None, settings(home, tmp_path / "run", *words), console="none")
    before, after = (weights(erniecore.load_model(path)) for path in (home / "base", tmp_path / "run" / "model"))
    for name, values in after.items():
        np.testing.assert_array_equal(values, before[name], err_msg=name)


def test_adapters_of_tower_and_resampler_learn(home, tmp_path):
    words = ["adapter=lora", "adapter.targets=tower,resampler", "train.max_steps=2"]
    erniecore.run(None, settings(home, tmp_path / "run", *words), console="none")
    found = {n: values for n, values in tensors(tmp_path / "run", 2)["model"].items() if n.endswith(".B")}
    assert {part_of(name) for name in found} == {"vision", "resampler"}
    for part in ("vision", "resampler"):  # it begins as zeros
        assert max(np.abs(values).max() for name, values in found.items() if part_of(name) == part) > 1e-3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"train": "text,towers"}, "vision_experts"),
        ({"train": ""}, "at least one"),
        ({"train": ["text", "text"]}, "once"),
        ({"lr_factors": {"vision": 0.9}}, "vision is not trained"),
        ({"train": ["vision"], "lr_factors": {"vision": 0}}, "positive"),
    ],
)
def test_settings_that_say_nothing_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        VlConfig(**given)


def test_an_adapter_and_parts_are_refused(home, tmp_path):
    with pytest.raises(ConfigError, match=r"model\.train.*adapter\.targets"):
        erniecore.run(None, settings(home, tmp_path / "run", "adapter=lora", "model.train=vision"), console="none")
