"""Pre-training on encyclopedia articles that nobody here wrote: every document accounted for, a perplexity that falls.

About a minute on one core; set ERNIE_REAL_DATA to the directory of the data.
"""

import json
import os
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.real_data,
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("ERNIE_REAL_DATA"), reason="ERNIE_REAL_DATA names no directory"),
]

#: two million parameters
SIZE = {
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "initializer_range": 0.05,
}


def run(run_ernie, *words):
    outcome = run_ernie(*words)
    assert outcome.code == 0, outcome.err
    return outcome.out


@pytest.fixture(scope="module")
def articles(tmp_path_factory, run_ernie):
    """A tokenizer, token files ``train`` of all articles but three, these as ``held.txt``, and a new model ``base``."""
    place = tmp_path_factory.mktemp("articles")
    lines = (
        (Path(os.environ["ERNIE_REAL_DATA"]) / "wiki_demo.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    )
    (place / "train.txt").write_text("".join(lines[:-3]), encoding="utf-8")
    (place / "held.txt").write_text("".join(lines[-3:]), encoding="utf-8")
    run(run_ernie, "tokenizer", "train", place / "train.txt", "--vocab-size", 2048, "--out", place / "tok")
    words = ["data", "build", place / "train.txt", "--tokenizer", place / "tok", "--out", place / "train", "--json"]
    report = json.loads(run(run_ernie, *words))
    assert (report["rows"], report["kept"], report["documents"]) == (len(lines) - 3,) * 3
    size = ",".join(f"{key}={value}" for key, value in SIZE.items())
    words = ["--model", "ernie45", "--tokenizer", place / "tok", "--size", size, "--out", place / "base"]
    run(run_ernie, "model", "init", *words)
    return place


def perplexity(run_ernie, articles, model):
    words = ["--method", "pt", "--data", articles / "held.txt", "--max-seq-len", 256, "--json"]
    report = json.loads(run(run_ernie, "eval", "--model", model, *words))
    assert (report["rows"], report["dropped"]) == (3, 0)
    return report["perplexity"]


def test_held_out_perplexity_falls_in_a_hundred_steps(articles, run_ernie, record_property):
    out = articles / "out"
    settings = ["train.max_steps=100", "train.batch_size=4", "data.max_seq_len=256", "train.learning_rate=3e-3"]
    settings += ["optimizer.beta2=0.95", "train.schedule=wsd", "train.decay_steps=30", "train.decay_shape=1-sqrt"]
    words = ["--method", "pt", "--model", articles / "base", "--data", articles / "train", f"run.out={out}", *settings]
    run(run_ernie, "run", *words)
    before = perplexity(run_ernie, articles, articles / "base")
    after = perplexity(run_ernie, articles, out)
    record_property("held-out perplexity", [before, after])
    print(f"held-out perplexity {before:.0f} -> {after:.0f}")
    assert before > 1500
    assert after < before / 4
