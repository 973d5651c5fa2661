"""Tiny models, data, and runs of one and of several processes to compare."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

HELPERS = Path(__file__).with_name("hybrid_helpers.py")
SIZES = {
    "dense": (
        "ernie45",
        "hidden_size=32,intermediate_size=64,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=4,head_dim=8",
    ),
    "untied": (
        "ernie45",
        "hidden_size=32,intermediate_size=64,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2,head_dim=8,"
        "tie_word_embeddings=false,use_bias=true",
    ),
    "moe": (
        "ernie45-moe",
        "hidden_size=32,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2",
    ),
    "vl": (
        "ernie45-vl",
        "hidden_size=32,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2",
    ),
    "moe-mtp": (
        "ernie45-moe",
        "hidden_size=32,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2,num_nextn_predict_layers=1",
    ),
    "deep": (
        "ernie45",
        "hidden_size=32,intermediate_size=64,num_hidden_layers=4,num_attention_heads=4,num_key_value_heads=4,head_dim=8",
    ),
    "deep-untied": (
        "ernie45",
        "hidden_size=32,intermediate_size=64,num_hidden_layers=4,num_attention_heads=4,num_key_value_heads=2,head_dim=8,"
        "tie_word_embeddings=false,use_bias=true",
    ),
    "deep-moe": (
        "ernie45-moe",
        "hidden_size=32,num_hidden_layers=4,num_attention_heads=4,num_key_value_heads=2,num_nextn_predict_layers=1,"
        "tie_word_embeddings=false",
    ),
}


def write_rows(path, count, make):
    rng = random.Random(path.name)
    rows = (make(rng.randint(0, 30), rng.randint(0, 30)) for _ in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def conversation(a, b):
    return {"messages": [{"role": "user", "content": f"{a} plus {b}"}, {"role": "assistant", "content": f"{a + b}"}]}


def preference(a, b):
    chosen, rejected = ({"role": "assistant", "content": f"{c}"} for c in (a + b, a + b + 1))
    return {"messages": [{"role": "user", "content": f"{a} plus {b}"}], "chosen": chosen, "rejected": rejected}


def rated(a, b):
    return {**conversation(a, b + a % 2), "label": a % 2 == 0}


#: method -> its data; ``dpo.jsonl`` for the others
DATA = {
    **dict.fromkeys(("sft", "elastic-sft", "distill", "grpo", "rloo", "online-dpo", "upo"), "sft.jsonl"),
    "kto": "kto.jsonl",
}


@pytest.fixture(scope="session")
def hybrid_home(tmp_path_factory):
    """Models ``dense``, ``untied``, ``moe``; ``sft.jsonl``, ``dpo.jsonl``, ``kto.jsonl``, ``eval.jsonl``."""
    from erniecore_model_init.new_model import init_model
    from erniecore_text.training import train

    home = tmp_path_factory.mktemp("hybrid")
    (home / "tok").mkdir()
    texts = [f"{a} plus {b} {a + b}" for a in range(31) for b in range(31)]
    train([*texts, *["the quick brown fox jumps over dogs"] * 9], 320).save(home / "tok")
    for name, (model, size) in SIZES.items():
        # seeds whose gradients are all more than rounding: Adam makes whole steps of what is not
        init_model(model, size, home / "tok", home / name, seed_value=1 if name == "moe" else 2)
    write_rows(home / "sft.jsonl", 60, conversation)
    write_rows(home / "dpo.jsonl", 60, preference)
    write_rows(home / "kto.jsonl", 60, rated)
    write_rows(home / "eval.jsonl", 11, conversation)  # uneven: one rank has less
    return home


@pytest.fixture(scope="session")
def words(hybrid_home):
    """``words(out, model, method, **changes)``: a run of three steps as ``section.key=value``."""

    def make(out, model="dense", method="sft", **changes):
        keys = {
            "model.name": SIZES[model][0],
            "model.path": hybrid_home / model,
            "method.name": method,
            "data.train": hybrid_home / DATA.get(method, "dpo.jsonl"),
            "data.max_seq_len": 64,
            "train.batch_size": 2,
            "train.learning_rate": 5e-4,
            "train.max_steps": 3,
            "run.out": out,
            "log.report": "false",
            **({"data.eval": hybrid_home / "eval.jsonl"} if method == "sft" else {}),
            **({"method.teacher": hybrid_home / "untied"} if method == "distill" else {}),
            **{key.replace("__", "."): value for key, value in changes.items()},
        }
        return [f"{key}={value}" for key, value in keys.items()]

    return make


class Expected:
    """Two finished runs, step by step and tensor by tensor."""

    def __init__(self, one, other, step=3):
        from erniecore_checkpoint.reader import load_checkpoint

        self.events = [[json.loads(e) for e in (d / "events.jsonl").read_text().splitlines()] for d in (one, other)]
        self.states = [load_checkpoint(d / "ckpt" / f"step-{step:08d}").tensors for d in (one, other)]

    def of(self, kind, key):
        """Largest relative difference of a number over all events of a kind."""
        pairs = zip(*([e[key] for e in events if e["event"] == kind] for events in self.events), strict=True)
        return max(abs(a - b) / max(abs(a), 1e-12) for a, b in pairs)

    def weights(self, group="model"):
        """Largest difference of any weight; names, shapes and dtypes are the same."""
        one, other = (state[group] for state in self.states)
        assert {n: (t.shape, t.dtype) for n, t in one.entries.items()} == {
            n: (t.shape, t.dtype) for n, t in other.entries.items()
        }
        return max(float(np.abs(one[name] - other[name]).max()) for name in one)

    def assert_close(self):
        """Loss and norm of each step within 1e-6, evaluation too, weights within 1e-5."""
        print({k: self.of("step", k) for k in ("loss", "grad_norm", "tokens")}, self.weights())
        assert self.of("step", "loss") <= 1e-6
        assert self.of("step", "grad_norm") <= 1e-5
        assert self.of("step", "tokens") == 0
        if any(e["event"] == "eval" for e in self.events[0]):
            assert self.of("eval", "loss") <= 1e-6
        assert self.weights() <= 1e-5
        if "objective" in self.states[0]:
            assert self.weights("objective") <= 1e-5


@pytest.fixture(scope="session")
def compared():
    """``Expected`` runs."""
    return Expected
