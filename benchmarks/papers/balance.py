"""Routers of a mixture of experts side by side: what evens the load out, and what it costs in loss."""

from __future__ import annotations

from pathlib import Path

from benchmarks.papers.common import Experiment, Found, Results, Verdict
from benchmarks.papers.runs import VOCABULARY, eval_loss, prepare, steps_of, tail_mean, train

SIZE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "moe_num_experts": 16,
    "moe_k": 2,
    "moe_intermediate_size": 32,
    "moe_num_shared_experts": 0,
    "moe_layer_start_index": 0,
    "moe_layer_end_index": 3,
    "num_nextn_predict_layers": 0,
}
NO_BIAS = "model.bias_update_rate=0"
ARMS = {
    "none": (NO_BIAS,),
    "aux 1e-2": (NO_BIAS, "model.router_aux_loss=1e-2"),
    "sequence-wise 1e-2": (NO_BIAS, "model.router_sequence_loss=1e-2"),
    "bias 1e-3": (),
    "bias + orthogonal 1e-2": ("model.router_orthogonal_loss=1e-2",),
    "bias + decoupled orthogonal 1": ("model.router_orthogonal_loss=1", "model.router_orthogonal_decoupled=true"),
    "SimBal 1e-1": (NO_BIAS, "model.router_similarity_loss=1e-1"),
}
COMMON = ("data.max_seq_len=64", "train.batch_size=8", "train.learning_rate=3e-3", "train.warmup_ratio=0.1")


def run(arm: str, seed: int, steps: int, out: Path) -> Found:
    """MaxVio is the busiest expert's load over the mean of its layer, minus 1, in the worst layer; of each step by itself."""
    prepare(out, sums=0.1)
    name = "".join(letter if letter.isalnum() else "-" for letter in arm)
    events = train(out, name, "ernie45-moe", SIZE, seed, steps, (*COMMON, *ARMS[arm]))
    violation = [(step, load - 1) for step, load in steps_of(events, "moe/max_load")]
    entropy = tail_mean(steps_of(events, "moe/router_entropy"))
    values = {"MaxVio": tail_mean(violation), "held-out loss": eval_loss(events), "router entropy": entropy}
    return Found(values, {"maxvio": [point for point in violation if point[0] % 5 == 0]})


def judge(results: Results) -> tuple[Verdict, str]:
    """Five times less, and no higher loss than with the auxiliary loss."""
    even, uneven = (results.values(arm, "MaxVio") for arm in ("bias 1e-3", "none"))
    factor = sum(uneven.values()) / sum(even.values())
    cost = results.compare("bias 1e-3", "aux 1e-2", "held-out loss")
    low, high = cost.ends
    told = (
        f"MaxVio without any balancing is {factor:.2f} times that with the bias; the bias costs {cost.mean:+.4f} ({low:+.4f} … "
        f"{high:+.4f}) nats per token against the auxiliary loss."
    )
    if results.compare("bias 1e-3", "none", "MaxVio").judged() == "contrary" or cost.judged() == "contrary":
        return "contrary", told
    return ("seen" if factor >= 5 else "not seen"), told


EXPERIMENT = Experiment(
    name="balance",
    title="Router balance",
    question="Does the loss-free bias (arXiv:2408.15664) even the load of experts out at least five times, at no higher loss "
    "than an auxiliary loss?",
    rule="*seen* if mean MaxVio of the last fifth of the steps without balancing is at least 5 times that with bias 1e-3, and "
    "the 95 % interval of the paired loss difference bias minus aux is not above 0; *contrary* if that interval is above 0 or "
    "the bias raises MaxVio; else *not seen*. The other arms are told and do not decide.",
    size="4 layers, hidden 64, 16 experts of width 32 in each, 2 per token, vocabulary 512, 90 % doc strings and 10 % sums of "
    "two numbers, rows of 64 tokens, 8 rows a step, {steps} steps, AdamW 3e-3 with cosine decay and 10 % warm-up.",
    baseline="none",
    arms=tuple(ARMS),
    measures={
        "MaxVio": "largest load over mean, minus 1, worst layer of a step; mean of the last fifth of the steps",
        "held-out loss": "nats per token of 150 held-out texts, at the end",
        "router entropy": "of the scores, 1: even; mean of the last fifth of the steps",
    },
    run=run,
    judge=judge,
    seeds=5,
    steps=100,
    axes={"maxvio": ("step", "MaxVio of the step")},
)
