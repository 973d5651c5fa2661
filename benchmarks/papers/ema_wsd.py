"""Does a moving average of the weights at a constant rate replace the decay of the learning rate?"""

from __future__ import annotations

from pathlib import Path

from benchmarks.papers.common import Comparison, Experiment, Found, Results, Verdict
from benchmarks.papers.runs import VOCABULARY, eval_loss, train

SIZE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
}
CONSTANT = "train.schedule=constant-with-warmup"
AVERAGES = ("EMA 0.9", "EMA 0.97", "EMA 0.99")
DECAYS = ("WSD linear", "WSD 1-sqrt", "cosine")
ARMS = {
    "constant": (CONSTANT,),
    **{name: (CONSTANT, f"train.ema={name.split()[1]}") for name in AVERAGES},
    "WSD linear": ("train.schedule=wsd", "train.decay_shape=linear"),
    "WSD 1-sqrt": ("train.schedule=wsd", "train.decay_shape=1-sqrt"),
    "cosine": ("train.schedule=cosine",),
}
COMMON = ("data.max_seq_len=64", "train.batch_size=8", "train.learning_rate=3e-3", "train.warmup_ratio=0.1")
LOSS = "held-out loss"


def run(arm: str, seed: int, steps: int, out: Path) -> Found:
    """The tail of WSD is the last fifth of the steps."""
    tail = (f"train.decay_steps={steps // 5}",) if arm.startswith("WSD") else ()
    name = arm.replace(" ", "-")
    return Found({LOSS: eval_loss(train(out, name, "ernie45", SIZE, seed, steps, (*COMMON, *ARMS[arm], *tail)))})


def judge(results: Results) -> tuple[Verdict, str]:
    """The best average against the best decay, by mean loss."""
    average = min(AVERAGES, key=lambda arm: results.mean(arm, LOSS))
    decay = min(DECAYS, key=lambda arm: results.mean(arm, LOSS))
    gap, gain = results.compare(average, decay, LOSS), results.compare(average, "constant", LOSS)
    error = standard_error(gap)
    told = (
        f"Best average: {average}; best decay: {decay}. The average is {gap.mean:+.4f} nats per token from the decay (standard "
        f"error {error:.4f}) and {gain:+.4f} from the raw weights."
    )
    if gain.judged() == "contrary":
        return "contrary", told
    return ("seen" if gain.judged() == "seen" and gap.mean <= error else "not seen"), told


def standard_error(pair: Comparison) -> float:
    """Of the mean difference; 0 for one seed."""
    n, mean = len(pair.differences), pair.mean
    return (sum((value - mean) ** 2 for value in pair.differences) / max(1, n - 1) / n) ** 0.5


EXPERIMENT = Experiment(
    name="ema-wsd",
    title="EMA or decay",
    question="Does a moving average of the weights at a constant learning rate reach the loss of a decayed one (ERNIE 4.5)?",
    rule="Of three decays of the average and of three schedules the ones with the lowest mean loss are compared, all with the "
    "same peak and number of steps. *seen* if the average is better than the raw weights (95 % interval of the paired difference "
    "below 0) and at most one standard error above the decay; *contrary* if it is worse than the raw weights; else *not seen*.",
    size="4 layers, hidden 128, vocabulary 512, doc strings of Python's library, rows of 64 tokens, 8 rows a step, {steps} "
    "steps, AdamW with a peak of 3e-3 and 10 % warm-up; the tail of WSD is a fifth of the steps.",
    baseline="constant",
    arms=tuple(ARMS),
    measures={LOSS: "nats per token of 150 held-out texts, at the end"},
    run=run,
    judge=judge,
    seeds=5,
    steps=100,
)
