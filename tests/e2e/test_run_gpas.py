"""Gates of the residual stream in whole runs: from a directory without, resumed bit for bit, used by every command."""

import json

import pytest

GPAS = {
    "model__gpas": "straight-through",
    "callbacks": "[gpas]",
    "callbacks__gpas__gradient_clip": 0.01,
    "checkpoint__every": 3,
}


@pytest.fixture(scope="module")
def gates_of():
    def read(directory):
        from safetensors.numpy import load_file

        tensors = load_file(directory / "model.safetensors")
        return {name: float(value[0]) for name, value in tensors.items() if name.endswith("residual.gate")}

    return read


@pytest.mark.slow
def test_a_run_with_gates_from_plain_weights_to_folded_ones(runner, ernie, gates_of):
    runner.complete("straight", **GPAS)
    runner.kill_at(4, "killed", **GPAS)
    runner.complete("killed", **GPAS)
    assert runner.curve("killed") == runner.curve("straight")
    assert runner.tensors(8, "killed") == runner.tensors(8, "straight")
    model = runner.directory / "straight" / "model"
    assert json.loads((model / "config.json").read_text())["gpas"] == "straight-through"
    gates = gates_of(model)
    assert len(gates) == 2
    assert all(value != 0 for value in gates.values())
    steps = runner.events("step", "straight")
    assert steps[0]["gpas/min_scale"] != 1
    # a directory with gates needs no setting, to continue or to generate
    runner.run("more", model__path=model, train__max_steps=1)
    assert len(gates_of(runner.directory / "more" / "model")) == 2
    said = ernie("generate", "--model", model, "--prompt", "3 plus 4", "--max-new-tokens", 3, "--json")
    assert said.code == 0, said
    done = ernie("export", model, "--to", "hf-folded", "--out", runner.directory / "plain", "--json")
    assert done.code == 0, done
    config = json.loads((runner.directory / "plain" / "config.json").read_text())
    assert "gpas" not in config
    assert gates_of(runner.directory / "plain") == {}
    again = ernie(
        "generate", "--model", runner.directory / "plain", "--prompt", "3 plus 4", "--max-new-tokens", 3, "--json"
    )
    assert json.loads(again.out)["text"] == json.loads(said.out)["text"]
    refused = ernie("export", model, "--to", "gguf", "--out", runner.directory / "gguf")
    assert refused.code != 0
    assert "hf-folded" in refused.err


def test_first_step_of_a_run_with_gates_has_the_loss_of_one_without(runner):
    losses = [runner.run(name, train__max_steps=1, **more).metrics["loss"] for name, more in (("a", {}), ("b", GPAS))]
    assert losses[0] == losses[1]


def test_an_adapter_trains_on_a_model_with_gates(runner, ernie):
    runner.run("gated", train__max_steps=1, **GPAS)
    model = runner.directory / "gated" / "model"
    runner.run("tuned", model__path=model, train__max_steps=1, adapter__name="lora", adapter__rank=2)
    adapter, target = runner.directory / "tuned" / "adapter", runner.directory / "merged"
    merged = ernie("merge", adapter, "--base", model, "--out", target)
    assert merged.code == 0, merged
    assert json.loads((target / "config.json").read_text())["gpas"] == "straight-through"


def test_the_plan_counts_gates(runner, ernie):
    totals = []
    for more in ({}, GPAS):
        told = ernie("plan", *runner.words(**more), "--json")
        assert told.code == 0, told
        totals.append(json.loads(told.out)["parameters"]["total"])
    assert totals[1] == totals[0] + 2
