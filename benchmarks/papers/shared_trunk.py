"""The universal module of ERNIE 3.0 (arXiv:2107.02137): is a trunk that was trained for understanding and for generation of more
use to either than one that was trained for the other alone?

A probe is a new task module over the frozen trunk, embedding and output head included: for understanding (hidden words are found
from both sides) or for generation (the next token). All trunks see as many samples in as many steps; the shared one learns each
sample by one of both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.papers.common import Experiment, Found, Results, Verdict
from benchmarks.papers.runs import VOCABULARY, learn, prepare

UNDERSTANDING, GENERATION = "kmlm", "document"
#: objective -> the task module that it goes through
MODULES: Mapping[str, str] = {UNDERSTANDING: "nlu.", GENERATION: "nlg."}
BOTH, NLU, NLG, NEW = "both", "understanding alone", "generation alone", "untrained"
ARMS: Mapping[str, Sequence[str]] = {
    BOTH: (UNDERSTANDING, GENERATION),
    NLU: (UNDERSTANDING,),
    NLG: (GENERATION,),
    NEW: (),
}
HIDDEN, MLP, HEADS, UNIVERSAL = 64, 128, 4, 3
LENGTH, BATCH, RATE, WARMUP, PROBE = 48, 16, 3e-3, 20, 60
#: texts that are trained on, and samples that are tested in one pass
TEXTS, AT_ONCE = 1500, 25
PROBE_NLU, PROBE_NLG = "probe for understanding", "probe for generation"
PROBES: Mapping[str, str] = {PROBE_NLU: UNDERSTANDING, PROBE_NLG: GENERATION}


def run(arm: str, seed: int, steps: int, out: Path) -> Found:
    """Train a trunk, then both probes over it."""
    import paddle

    tokenizer, train, evaluated = _data(prepare(out))
    paddle.seed(seed)
    trunk = _model()
    if ARMS[arm]:
        weights = dict.fromkeys(ARMS[arm], 1.0)
        _learn(trunk, tokenizer, weights, train, seed, steps, ("model.", *(MODULES[task] for task in weights)))
    values = {}
    for name, task in PROBES.items():
        paddle.seed(1000 + seed)
        probed = _model()
        probed.model.set_state_dict(trunk.model.state_dict())
        objective = _learn(probed, tokenizer, {task: 1.0}, train, 1000 + seed, PROBE, (MODULES[task],))
        values[name] = _evaluated(objective, evaluated, task)
    return Found(values)


def _model() -> Any:
    from erniecore_ernie3.architecture import Architecture
    from erniecore_ernie3.model import Ernie3

    width = {"hidden_size": HIDDEN, "intermediate_size": MLP, "num_attention_heads": HEADS}
    return Ernie3(
        Architecture.parse(
            {
                "model_type": "ernie3",
                "vocab_size": VOCABULARY,
                **width,
                **{f"task_{name}": size for name, size in width.items()},
                "num_hidden_layers": UNIVERSAL + 1,
                "num_task_layers": 1,
                "memory_length": 0,
                "layer_norm_eps": 1e-5,
                "rope_theta": 10000.0,
            }
        )
    )


@lru_cache(maxsize=1)
def _data(home: Path) -> tuple[Any, list[Any], list[Any]]:
    """Tokenizer, and samples to train on and held-out ones: texts in pieces that neither overlap nor leave a gap."""
    from erniecore_ernie3_pretrain.encoder import Ernie3Encoder
    from erniecore_text.opening import open_tokenizer

    from erniecore.api.data import Document, Origin

    tokenizer, _ = open_tokenizer(home / "tok")
    encoder = Ernie3Encoder(tokenizer, LENGTH, _config({UNDERSTANDING: 1.0, GENERATION: 1.0}).weights())
    found: dict[str, list[Any]] = {}
    for name in ("train", "held"):
        lines = (home / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[:TEXTS]
        documents = [Document(json.loads(line)["text"], Origin(name, i + 1)) for i, line in enumerate(lines)]
        found[name] = [sample for document in documents for sample in encoder.encode(document)]
    return tokenizer, found["train"], found["held"]


def _config(weights: Mapping[str, float]) -> Any:
    from erniecore_ernie3_pretrain.config import TASKS, Ernie3PretrainConfig

    return Ernie3PretrainConfig(segment_length=0, **{task: weights.get(task, 0.0) for task in TASKS})


def _learn(
    model: Any,
    tokenizer: Any,
    weights: Mapping[str, float],
    samples: Sequence[Any],
    seed: int,
    steps: int,
    trained: tuple[str, ...],
) -> Any:
    """Train the parameters whose names begin as in ``trained``; returns the objective."""
    from erniecore_ernie3_pretrain.objective import Ernie3Objective

    objective = Ernie3Objective(_config(weights), model, tokenizer)
    for name, parameter in model.named_parameters():
        parameter.stop_gradient = not name.startswith(trained)
    parameters = [parameter for parameter in model.parameters() if not parameter.stop_gradient]
    learn(objective, samples, parameters, seed, steps, BATCH, RATE, WARMUP)
    return objective


def _evaluated(objective: Any, samples: Sequence[Any], task: str) -> float:
    """Nats per target: what is hidden is the same in every call."""
    import paddle

    from erniecore.api.training import collate

    total = count = 0.0
    objective.policy.eval()
    with paddle.no_grad():
        for start in range(0, len(samples), AT_ONCE):
            batch = collate([[one] for one in samples[start : start + AT_ONCE]], pad_id=0)
            value, weight = objective(batch, objective.normalizers(batch)).metrics[f"{task}/loss"]
            total, count = total + float(value), count + weight
    return total / count


def judge(results: Results) -> tuple[Verdict, str]:
    """The shared trunk in each probe, against the trunk of the other task."""
    pairs = [results.compare(BOTH, NLU, PROBE_NLG), results.compare(BOTH, NLG, PROBE_NLU)]
    verdicts = [pair.judged() for pair in pairs]
    own = [results.compare(BOTH, NLG, PROBE_NLG), results.compare(BOTH, NLU, PROBE_NLU)]
    verdict: Verdict = "contrary" if "contrary" in verdicts else "seen" if set(verdicts) == {"seen"} else "not seen"
    return verdict, (
        f"Held-out loss of the probes, shared trunk minus the trunk of the other task alone: for generation {pairs[0]:+.4f}, for "
        f"understanding {pairs[1]:+.4f} nats per target. Minus the trunk of the same task alone, which had twice as many samples "
        f"of it: for generation {own[0]:+.4f}, for understanding {own[1]:+.4f}."
    )


EXPERIMENT = Experiment(
    name="shared-trunk",
    title="A trunk for understanding and generation",
    question="Is a trunk that was trained on both tasks better than one that was trained on either alone in the probe of the "
    "opposite task (ERNIE 3.0, arXiv:2107.02137)?",
    rule="seen where both 95 % intervals of the paired differences are below 0: shared trunk minus understanding alone in the "
    "probe for generation, and shared trunk minus generation alone in the probe for understanding; contrary where either is "
    "above 0; else not seen. Probes of the task that a trunk was trained for are told and do not decide.",
    size=f"ernie3 with {UNIVERSAL} universal layers and task modules of one layer, all of {HIDDEN}, vocabulary {VOCABULARY}, "
    f"doc strings of Python's library in samples of {LENGTH} tokens, {{steps}} steps of {BATCH} samples for the trunk (for both "
    f"tasks together in the shared one), then {PROBE} steps for a new task module over the frozen trunk; AdamW {RATE:g}.",
    baseline=BOTH,
    arms=tuple(ARMS),
    measures={
        PROBE_NLG: "held-out nats per next token",
        PROBE_NLU: "held-out nats per hidden token",
    },
    run=run,
    judge=judge,
    seeds=3,
    steps=150,
)
