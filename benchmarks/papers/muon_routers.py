"""Muon and AdamW on a mixture of experts, with the routers under Muon or not."""

from __future__ import annotations

from pathlib import Path

from benchmarks.papers.balance import COMMON, SIZE
from benchmarks.papers.common import Experiment, Found, Results, Verdict
from benchmarks.papers.runs import eval_loss, prepare, steps_of, tail_mean, train

ARMS = {
    "AdamW": (),
    "Muon, routers by AdamW": ("optimizer.name=muon",),
    "Muon, routers too": ("optimizer.name=muon", 'optimizer.include=["*.mlp.gate.weight"]'),
}
LOSS, ANGLE = "held-out loss", "orthogonal loss of the routers"
# a coefficient this small moves nothing; it makes the run report the loss
OBSERVED = ("model.router_orthogonal_loss=1e-12", "model.router_orthogonal_decoupled=true")


def run(arm: str, seed: int, steps: int, out: Path) -> Found:
    """With the loss-free bias, as the product's default is."""
    prepare(out, sums=0.1)
    name = "".join(letter if letter.isalnum() else "-" for letter in arm)
    events = train(out, name, "ernie45-moe", SIZE, seed, steps, (*COMMON, *OBSERVED, *ARMS[arm]))
    angles = steps_of(events, "moe/orthogonal")
    violation = tail_mean(steps_of(events, "moe/max_load")) - 1
    values = {ANGLE: tail_mean(angles), LOSS: eval_loss(events), "MaxVio": violation}
    return Found(values, {"orthogonal": [point for point in angles if point[0] % 5 == 0]})


def judge(results: Results) -> tuple[Verdict, str]:
    """By the angles of the routers' vectors."""
    turned = results.compare("Muon, routers too", "Muon, routers by AdamW", ANGLE)
    cost = results.compare("Muon, routers too", "Muon, routers by AdamW", LOSS)
    told = (
        f"Routers under Muon instead of AdamW change the orthogonal loss by {turned:+.4g} and the "
        f"held-out loss by {cost:+.4f}."
    )
    return turned.judged(), told


EXPERIMENT = Experiment(
    name="muon-routers",
    title="Routers under Muon",
    question="Are a router's expert vectors more orthogonal when Muon trains them, so that it confounds the orthogonal loss?",
    rule="*seen* if the 95 % interval of the paired difference of the orthogonal loss, routers under Muon minus routers under "
    "AdamW beside Muon, is below 0; *contrary* if above; else *not seen*.",
    size="The mixture of experts of the balance experiment, loss-free bias 1e-3, {steps} steps, peak 3e-3.",
    baseline="AdamW",
    arms=tuple(ARMS),
    measures={
        ANGLE: "||G Gᵀ − I||² / E² of the unit expert vectors, mean over layers and the last fifth of the steps",
        LOSS: "nats per token of 150 held-out texts, at the end",
        "MaxVio": "as in the balance experiment",
    },
    run=run,
    judge=judge,
    seeds=5,
    steps=80,
    axes={"orthogonal": ("step", "orthogonal loss of the routers")},
)
