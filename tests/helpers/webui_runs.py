"""Runs that are events and nothing else, and models that nobody can compute with: for tests of the page."""

import json


def write_run(directory, steps=30, *, name="", status="finished", loss=3.0, **start):
    """The events of a run and nothing else."""
    directory.mkdir(parents=True)
    events = [{"event": "run_start", "time": 1.0, "name": name or directory.name, "total_steps": 100,
               "device": "cpu", "plugins": {"method": "sft", "model": "ernie45"}, **start}]  # fmt: skip
    events += [
        {"event": "step", "time": 2.0 + i, "step": i, "loss": loss / i, "lr": 0.1, "tokens": 10, "seconds": 0.5}
        for i in range(1, steps + 1)
    ]
    if status:
        events.append({"event": "run_end", "status": status, "steps": steps})
    (directory / "events.jsonl").write_text("\n".join(map(json.dumps, events)) + "\n")
    return directory


def write_model(directory, **config):
    """The files that tell what a model is, without weights that could be computed with."""
    directory.mkdir(parents=True)
    content = {"architectures": ["Ernie4_5ForCausalLM"], "torch_dtype": "bfloat16", "max_position_embeddings": 128}
    (directory / "config.json").write_text(json.dumps({**content, **config}))
    (directory / "model.safetensors").write_bytes(bytes(1000))
    (directory / "tokenizer.json").write_text("{}")
    return directory
