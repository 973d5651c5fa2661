"""The methods `adversarial`, `controllable` and `progressive` on two processes: what a row is learned with (which attributes
stay, which windows there are, whether a text is judged) does not depend on the rank that has it. One launch for all."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from erniecore_conformance.processes import on_ranks
from erniecore_model_init.new_model import init_model

pytestmark = pytest.mark.slow

HELPERS = Path(__file__).parents[2] / "plugins/parallel/hybrid_parallel/tests/hybrid_helpers.py"
SIZE = "hidden_size=32,intermediate_size=64,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=4,head_dim=8"
STEPS = 3
#: layout -> its settings; ranks that have rows of their own take half of the micro-batches
LAYOUTS = {
    "data": {"parallel__data": 2, "train__accumulation": 2},
    "stage3": {"parallel__sharding": 2, "parallel__sharding_stage": 3, "train__accumulation": 2},
    "tensor": {"parallel__tensor": 2},
    "context": {"parallel__context": 2},
    "pipeline": {"parallel__pipeline": 2},
}
METHODS = {
    "adversarial": {},
    "controllable": {"method__genres": "{list: 2, story: 2}"},
    "progressive": {"method__start_length": 8, "method__start_batch": 1, "train__warmup_steps": 2},
}
#: layout that a method refuses -> what it says
REFUSED = {
    ("progressive", "context"): "whole sequences on every rank",
    ("progressive", "pipeline"): "whole sequences on every rank",
}
METRICS = {"adversarial": ("adversarial_loss", "lm_loss", "accuracy"), "progressive": ("progressive/length",)}


def rows_of(method):
    rng = random.Random(method)
    for n in range(40):
        topic, genre = rng.choice(("fox", "dog")), rng.choice(("list", "story"))
        text = f"{n} plus {n % 7} makes {n + n % 7}. the {topic} jumps over {rng.choice(('dogs', 'the quick fox'))}"
        if method == "adversarial":
            yield {"paragraph": f"{text}.", "generated": bool(n % 2)}
        elif method == "controllable":
            yield {"body": text, "genre": genre, "topic": topic}
        else:
            yield {"text": text}


@pytest.fixture(scope="module")
def runs(home, runner_class, tmp_path_factory):
    """A runner with the runs ``METHOD-one`` of one process, and ``METHOD-LAYOUT`` of two."""
    runner = runner_class(home, tmp_path_factory.mktemp("titan"))
    model = runner.directory / "model"
    init_model("ernie45", f"{SIZE},vocab_size=324", home / "tok", model, seed_value=2)
    cases = []
    for method, own in METHODS.items():
        rows = runner.directory / f"{method}.jsonl"
        rows.write_text("".join(json.dumps(row) + "\n" for row in rows_of(method)))
        chosen = {
            "method__name": method,
            "model__path": model,
            "data__train": rows,
            "train__max_steps": STEPS,
            "train__accumulation": 4,
            "train__learning_rate": 5e-4,
            # AdamW makes whole steps of what is rounding, where gradients cancel
            "optimizer__epsilon": 1e-5,
            "checkpoint__export": "false",
            **own,
        }
        runner.run(f"{method}-one", **chosen)
        cases += [
            runner.words(f"{method}-{name}", **{**chosen, "parallel__name": "hybrid", **layout})
            for name, layout in LAYOUTS.items()
            if (method, name) not in REFUSED
        ]
    on_ranks(2, f"{HELPERS}:runs", cases, limit=900.0)
    return runner


@pytest.mark.multiproc
@pytest.mark.parametrize(("method", "layout"), [(m, n) for m in METHODS for n in LAYOUTS if (m, n) not in REFUSED])
def test_two_processes_learn_what_one_does(runs, method, layout):
    one, two = (runs.events("step", f"{method}-{name}") for name in ("one", layout))
    assert [e["tokens"] for e in two] == [e["tokens"] for e in one]
    for key in ("loss", *METRICS.get(method, ())):
        assert [e[key] for e in two] == pytest.approx([e[key] for e in one], rel=1e-5), key
    assert [e["grad_norm"] for e in two] == pytest.approx([e["grad_norm"] for e in one], rel=1e-4)
    expected, found = weights(runs, f"{method}-one"), weights(runs, f"{method}-{layout}")
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        np.testing.assert_allclose(found[name], weight, atol=1e-5, err_msg=name)


def weights(runs, name):
    """All weights after the last step, by name."""
    from erniecore_checkpoint.reader import load_checkpoint

    found = load_checkpoint(runs.directory / name / "ckpt" / f"step-{STEPS:08d}").tensors["model"]
    return {key: found[key] for key in found}


@pytest.mark.parametrize(("method", "layout"), list(REFUSED))
def test_what_needs_whole_rows_says_so(runs, method, layout):
    from erniecore.errors import ConfigError

    with pytest.raises(ConfigError, match=REFUSED[method, layout]):
        runs.run("never", method__name=method, parallel__name="hybrid", **LAYOUTS[layout])
