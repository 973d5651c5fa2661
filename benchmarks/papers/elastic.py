"""Elastic training (ERNIE 5.0, arXiv:2602.04705, tables 9 to 12 in miniature): does one run that trains smaller models inside a
model leave the model as good, and the smaller ones usable? With the two controls that the paper's tables lack: a model that was
not trained so and is cut down in the same way, and a model of the smaller size that is trained alone.

Every run is a ``pretrain`` loss over bytes, without files: the methods' objectives, the built-in AdamW, batches drawn by (seed,
step), the same for all arms of a seed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import paddle  # noqa: TID253
from erniecore_elastic.config import ElasticPretrainConfig
from erniecore_elastic.measuring import expert_weights
from erniecore_elastic.objective import ElasticPretrainObjective
from erniecore_elastic.sampling import Drawn, even_layers
from erniecore_ernie45_moe.architecture import MoeArchitecture
from erniecore_ernie45_moe.config import MoeConfig
from erniecore_ernie45_moe.model import Ernie45MoeForCausalLM

from benchmarks.papers.common import Experiment, Found, Results, Verdict
from benchmarks.texts import paragraphs
from erniecore.api.adamw import AdamW
from erniecore.api.method import Batch
from erniecore.api.optimizer import AdamWConfig
from erniecore.api.testing import using_kernels
from erniecore.api.training import forward_backward
from erniecore.config.core import TrainSection
from erniecore.engine.optimizers.parameters import gradient_square_sum, trained_parameters

LAYERS, EXPERTS, SELECTED, HIDDEN = 8, 16, 4, 48
ROWS, LENGTH, MICRO_STEPS, PEAK, WARMUP = 16, 64, 1, 4e-3, 20
#: measure -> the part of the model, by the settings of an arm that trains it alone
PARTS: dict[str, dict[str, int]] = {
    "depth 6": {"layers": 6},
    "width 8": {"experts": 8},
    "k 2": {"selected": 2},
    "k 1": {"selected": 1},
}
ELASTIC: dict[str, dict[str, Any]] = {
    "baseline": {},
    "elastic depth": {"depths": [6]},
    "elastic width": {"widths": [8]},
    "elastic k": {"selected": [1, 2, 3]},
}
#: arm -> the measures of its axis
AXES = {"elastic depth": ("depth 6",), "elastic width": ("width 8",), "elastic k": ("k 2", "k 1")}
ALONE = "trained alone"
PENALTY, ERRORS = 0.03, 3.0


def architecture(layers: int = LAYERS, experts: int = EXPERTS, selected: int = SELECTED) -> dict[str, Any]:
    """config.json of the model or of a smaller one: a dense layer, then experts."""
    return {
        "model_type": "ernie4_5_moe",
        "vocab_size": 256,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "initializer_range": 0.05,
        "max_position_embeddings": LENGTH,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "use_bias": False,
        "moe_gate": "topk",
        "moe_use_aux_free": True,
        "moe_num_experts": experts,
        "moe_k": selected,
        "moe_intermediate_size": 24,
        "moe_num_shared_experts": 0,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": layers - 1,
        "tie_word_embeddings": True,
    }


@lru_cache(maxsize=1)
def corpus() -> tuple[np.ndarray, np.ndarray]:
    """Bytes to train on, and the last tenth to measure on."""
    text = np.frombuffer("\n\n".join(paragraphs()).encode(), np.uint8).astype(np.int64)
    cut = len(text) * 9 // 10
    return text[:cut], text[cut:]


def windows(text: np.ndarray, rows: int, key: int) -> np.ndarray:
    """[rows, LENGTH + 1] bytes from random places."""
    starts = np.random.Generator(np.random.PCG64(key)).integers(0, len(text) - LENGTH - 1, rows)
    return np.stack([text[start : start + LENGTH + 1] for start in starts])


def batch_of(bytes_: np.ndarray) -> Batch:
    """A micro-batch of full rows."""
    rows = len(bytes_)
    return Batch(
        input_ids=bytes_[:, :-1],
        labels=bytes_[:, 1:],
        position_ids=np.tile(np.arange(LENGTH), (rows, 1)),
        startend_row_indices=np.full((rows, 1, LENGTH, 1), LENGTH, np.int32),
        fields={},
        num_tokens=rows * LENGTH,
        num_samples=rows,
    )


def new_model(seed: int, **sizes: int) -> Ernie45MoeForCausalLM:
    """With the weights of ``seed``."""
    paddle.seed(seed)
    source = architecture(**sizes)
    return Ernie45MoeForCausalLM(MoeArchitecture.parse(source), MoeConfig(architecture=source))


def train(model: Ernie45MoeForCausalLM, seed: int, steps: int, **elastic: Any) -> list[tuple[float, float]]:
    """Cosine rate from PEAK to a tenth, clipped at 1; the loss of whole passes by step, averaged over twenty of them."""
    objective = ElasticPretrainObjective(model, elastic=ElasticPretrainConfig(**elastic))
    parameters = trained_parameters(model.named_parameters(), TrainSection(weight_decay=0.1))
    optimizer = AdamW(parameters, AdamWConfig(beta2=0.95))
    text, _ = corpus()
    model.train()
    curve, seen = [], list[float]()
    for step in range(1, steps + 1):
        key = seed * 1_000_003 + step
        rows = windows(text, ROWS * MICRO_STEPS, key).reshape([MICRO_STEPS, ROWS, LENGTH + 1])
        batches = objective.prepare([batch_of(part) for part in rows], step=step, seed=key)
        output = forward_backward(objective, batches)
        rate = PEAK * min(step / WARMUP, 0.55 + 0.45 * math.cos(math.pi * step / steps))
        optimizer.step(rate, min(1.0, 1.0 / max(float(gradient_square_sum(optimizer).sqrt()), 1e-12)))
        optimizer.clear_gradients()
        model.after_step(rate=rate)
        objective.after_step(step=step, rate=rate)
        total = output.metrics.get("elastic/whole_loss") or (None if elastic else output.metrics["loss"])
        seen += [] if total is None else [float(total[0]) / total[1]]
        if step % 20 == 0 and seen:
            curve.append((float(step), sum(seen) / len(seen)))
            seen = []
    return curve


@paddle.no_grad()
def eval_loss(model: Ernie45MoeForCausalLM, part: Drawn) -> float:
    """Negative log-likelihood per byte, in nats, on 256 windows that are the same for everything."""
    model.eval()
    objective = ElasticPretrainObjective(model, elastic=ElasticPretrainConfig())
    _, text = corpus()
    total = weight = 0.0
    for which in range(8):
        batch = batch_of(windows(text, 32, which))
        given = {name: paddle.to_tensor(values) for name, values in part.inputs().items()}
        features = model.features(paddle.to_tensor(batch.input_ids), **given)
        loss, _ = objective.main_loss(features.hidden, batch)
        total, weight = total + float(loss), weight + batch.num_tokens
    return total / weight


def parts_of(model: Ernie45MoeForCausalLM) -> Mapping[str, Drawn]:
    """The smaller models as ``ernie extract`` takes them: evenly spaced layers, the experts with the most weight on training
    text."""
    text, _ = corpus()
    weights = expert_weights(model, [windows(text, 8, 7_000_000 + i)[:, :-1] for i in range(8)])
    best = [tuple(sorted(np.argsort(-row, kind="stable")[:8].tolist())) for row in weights]
    experts = (tuple(range(8)), *best)  # the dense layer has a row, too
    return {
        "depth 6": Drawn(layers=even_layers(LAYERS, 6)),
        "width 8": Drawn(experts=experts),
        "k 2": Drawn(num_selected=2),
        "k 1": Drawn(num_selected=1),
    }


def run(arm: str, seed: int, steps: int, out: Path) -> Found:
    """Train and measure, with the kernels that a run on this processor has."""
    with using_kernels("cpu"):
        return trained(arm, seed, steps, out)


def trained(arm: str, seed: int, steps: int, out: Path) -> Found:
    """What an arm gives. ``trained alone`` has the baseline's own figure as its full model: it is that run."""
    if arm == ALONE:
        kept = json.loads((out / f"baseline-{seed}-{steps}.json").read_text(encoding="utf-8"))
        values = {"full": kept["values"]["full"]}
        for name, sizes in PARTS.items():
            model = new_model(seed, **sizes)
            train(model, seed, steps)
            values[name] = eval_loss(model, Drawn())
        return Found(values)
    model = new_model(seed)
    curve = train(model, seed, steps, **ELASTIC[arm])
    values = {"full": eval_loss(model, Drawn())}
    values |= {name: eval_loss(model, part) for name, part in parts_of(model).items()}
    return Found(values, {"loss": curve})


def standard_error(differences: Sequence[float]) -> float:
    """Of the mean; infinite with one seed, which judges nothing."""
    count = len(differences)
    return math.inf if count == 1 else max(float(np.std(differences, ddof=1)) / math.sqrt(count), 1e-12)


def judge(results: Results) -> tuple[Verdict, str]:
    """The verdict by ``RULE``, and its figures."""
    seeds = len({seed for _, seed in results.runs})
    said, good, bad = [f"{seeds} seed{'s' * (seeds > 1)}"], True, False
    for arm, measures in AXES.items():
        penalty = results.compare(arm, "baseline", "full")
        good, bad = good and penalty.mean <= PENALTY, bad or penalty.ends[0] > PENALTY
        text = f"{arm}: the full model pays {penalty.mean:+.3f}"
        for measure in measures:
            gain = results.compare(arm, "baseline", measure)
            errors = -gain.mean / standard_error(gain.differences)
            good, bad = good and errors > ERRORS, bad or errors < -ERRORS
            own = results.compare(arm, ALONE, measure)
            text += f"; {measure} {gain.mean:+.3f} against cut down, {own.mean:+.3f} against trained alone"
        said.append(text)
    return ("contrary" if bad else "seen" if good else "not seen"), ". ".join(
        said
    ) + " (nats per byte, means over seeds)."


RULE = (
    "Seen: on each axis the full model of the elastic arm is at most 0.03 nats worse than the baseline's (mean of paired "
    "differences), and its smaller models are better than the baseline's that are cut down in the same way, by more than 3 "
    "standard errors of the paired difference. Contrary: a penalty whose whole 95 % interval is above 0.03, or a smaller model "
    "that is worse than the cut one by more than 3 standard errors. Else not seen. How the smaller models compare with ones "
    "that are trained alone is reported and decides nothing."
)

EXPERIMENT = Experiment(
    name="elastic",
    title="Elastic training: smaller models inside the model",
    question="Does one run that sometimes trains fewer layers, fewer experts or fewer experts per token leave the full model as "
    "good, and the smaller models inside it usable (ERNIE 5.0, tables 9 to 12)?",
    rule=RULE,
    size=f"A mixture of experts with {LAYERS} layers (the first dense), width {HIDDEN}, {EXPERTS} experts of which {SELECTED} "
    f"are selected, bytes of the doc strings of Python's library, {{steps}} steps of {ROWS * MICRO_STEPS * LENGTH:,} tokens in "
    f"{MICRO_STEPS} micro-step; probabilities of the paper (depth 0.25, width 0.2, k 0.2), one axis per arm. The paper had 16 "
    "layers, 64 experts and 250 billion tokens. Full and smaller models are measured on the same held-out bytes.",
    baseline="baseline",
    arms=(*ELASTIC, ALONE),
    measures={
        "full": "held-out loss of the full model, nats per byte",
        "depth 6": "of 6 evenly spaced layers of 8",
        "width 8": "of the 8 experts of 16 with the most weight",
        "k 2": "with 2 experts per token in place of 4",
        "k 1": "with 1 expert per token in place of 4",
    },
    run=run,
    judge=judge,
    seeds=3,
    steps=160,
    axes={"loss": ("step", "loss of whole passes, nats per byte")},
)
