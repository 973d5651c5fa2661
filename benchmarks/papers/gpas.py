"""GPAS (arXiv:2506.22049): does scaling the residual stream down by learned gates, with an unscaled gradient, lower the loss of a
deep pre-norm decoder, and does the gain need the unscaled gradient?
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.papers.common import Experiment, Found, Results, Verdict
from benchmarks.papers.runs import VOCABULARY, eval_loss, steps_of, tail_mean, train

SIZE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "tie_word_embeddings": "false",
}
ARMS = {
    "pre-norm": (),
    "GPAS": ("model.gpas=straight-through",),
    "GPAS, scaled gradient": ("model.gpas=plain",),
    "LayerNorm scaling": ("model.layer_norm_scaling=true",),
}
COMMON = (
    "data.max_seq_len=64", "train.batch_size=4", "train.learning_rate=1e-3", "train.weight_decay=0", "train.warmup_ratio=0.1",
    "callbacks=[activations]", "callbacks.activations.every=50",
)  # fmt: skip


def run(arm: str, seed: int, steps: int, out: Path) -> Found:
    """Held-out loss, and the variance behind each layer at the end."""
    name = arm.replace(" ", "-").replace(",", "")
    events = train(out, name, "ernie45", SIZE, seed, steps, (*COMMON, *ARMS[arm]))
    last = [e for e in events if e["event"] == "step" and "activations/max_variance" in e][-1]
    layers = [last[f"activations/variance/model.layers.{index}"] for index in range(SIZE["num_hidden_layers"])]
    values = {
        "held-out loss": eval_loss(events),
        "variance behind the last layer": layers[-1],
        "mean training loss of the last fifth": tail_mean(steps_of(events, "loss")),
    }
    return Found(values, {"variance": [(index + 1, value) for index, value in enumerate(layers)]})


def judge(results: Results) -> tuple[Verdict, str]:
    """By the loss of GPAS alone."""
    gain, lost, rival = (results.compare(arm, "pre-norm", "held-out loss") for arm in list(ARMS)[1:])
    variance = results.mean("GPAS", "variance behind the last layer") / results.mean(
        "pre-norm", "variance behind the last layer"
    )
    return gain.judged(), (
        f"Held-out loss against pre-norm: GPAS {gain:+.4f}, with a scaled gradient {lost:+.4f}, LayerNorm scaling "
        f"{rival:+.4f} nats per token; with GPAS "
        f"the variance behind the last layer is {variance:.2f} times that of pre-norm."
    )


EXPERIMENT = Experiment(
    name="gpas",
    title="GPAS",
    question="Do gates that scale the residual stream down, with an unscaled gradient, lower the loss of a deep pre-norm decoder "
    "(paper: perplexity 33.98 to 33.38 at 71M)?",
    rule="*seen* if the 95 % interval of the paired difference of held-out losses, GPAS minus pre-norm, is below 0; *contrary* "
    "if above; else *not seen*. The other arms are told and do not decide.",
    size="24 layers, hidden 64, vocabulary 512, doc strings of Python's library, rows of 64 tokens, 4 rows a step, {steps} "
    "steps, AdamW 1e-3 with cosine decay and 10 % warm-up, no weight decay.",
    baseline="pre-norm",
    arms=tuple(ARMS),
    measures={
        "held-out loss": "nats per token of 150 held-out texts, at the end",
        "variance behind the last layer": "of the residual stream in the last measured training step",
        "mean training loss of the last fifth": "of the steps, nats per token",
    },
    run=run,
    judge=judge,
    seeds=8,
    steps=100,
    axes={"variance": ("layer", "variance of the residual stream at the end")},
)
