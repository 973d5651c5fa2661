"""Methods whose model writes texts during training, on every kind of layout: what one process learns. Ranks need different
numbers of passes, and none waits for another without end."""

import json
import shutil

import numpy as np
import pytest
from erniecore_conformance.processes import on_ranks

HELPERS = __file__.replace("test_hybrid_decoding.py", "hybrid_helpers.py")
DECODING = __file__.replace("test_hybrid_decoding.py", "decoding_helpers.py")
#: a reward that the completions of a random model do not share; four prompts per step, each of which is a micro-batch, because
#: losses of routers are those of micro-batches. Adam makes whole steps of rounding where gradients are almost nothing: epsilon
RL = {
    "train__accumulation": 2,
    "optimizer__epsilon": 1e-5,
    "data__packing": "none",
    "method__group_size": 3,
    "method__max_new_tokens": 6,
    "method__rollout_batch_size": 3,
    "method__learn_batch_size": 3,
    "rewards__regex": "{pattern: '[0-4]', whole: false}",
    "checkpoint__export": "false",
}
MOE = {**RL, "model": "moe", "model__router_aux_loss": 0.01}
KL = {"method__kl": 0.1}
#: completions of models that end at many tokens (``ENDS``): some end early, others go on in the next step. All are decoded
#: together, as those of several processes are
POOL = {"method__rollout_pool": 2, "method__max_new_tokens": 24, "method__rollout_batch_size": 0}
ENDS = list(range(1, 320, 7))
AGAIN = {"method__updates_per_rollout": 2}
DISTILL = {"method": "distill", "train__accumulation": 2, "optimizer__epsilon": 1e-5, "checkpoint__export": "false"}
DEEP = {"train__accumulation": 4, "train__batch_size": 1}
ALONE = {
    "grpo": {**RL, **KL, "method": "grpo", "model": "untied"},
    "grpo-moe": {**MOE, **KL, "method": "grpo", "method__zero_variance": "drop"},
    "grpo-sampler": {**RL, "method": "grpo", "model": "untied", "method__rollout_mantissa": 5},
    "grpo-replay": {**MOE, "method": "grpo", "method__router_replay": "sampler", "method__rollout_mantissa": 5},
    "grpo-replay-again": {
        **MOE,
        **AGAIN,
        "method": "grpo",
        "method__router_replay": "learner",
        "train__recompute": "full",
    },
    "grpo-pool": {**RL, **POOL, "method": "grpo", "model": "untied"},
    "grpo-moe-pool": {**MOE, **POOL, "method": "grpo", "run__seed": 1},
    "grpo-lora": {**RL, "method": "grpo", "adapter__name": "lora", "adapter__rank": 4},
    "rloo": {**RL, **KL, "method": "rloo"},
    "rloo-moe": {**MOE, **KL, "method": "rloo"},
    "online-dpo": {**RL, "method": "online-dpo"},
    "online-dpo-moe": {**MOE, "method": "online-dpo"},
    "upo": {**RL, "method": "upo"},
    "upo-moe": {**MOE, "method": "upo"},
    "distill": DISTILL,
    "distill-top": {**DISTILL, "method__top_k": 16},
    "distill-moe": {**DISTILL, "model": "moe", "model__router_aux_loss": 0.01},
    "deep": {**RL, **KL, **DEEP, "method": "grpo", "model": "deep"},
    "deep-moe": {**MOE, **KL, **DEEP, "method": "grpo", "model": "deep-moe"},
    "deep-rloo": {**RL, **KL, **DEEP, "method": "rloo", "model": "deep-untied"},
    "deep-online-dpo": {**RL, **DEEP, "method": "online-dpo", "model": "deep"},
    "deep-upo": {**RL, **DEEP, "method": "upo", "model": "deep-untied"},
    "deep-pool": {**RL, **POOL, **DEEP, "method": "grpo", "model": "deep"},
    "deep-moe-pool": {**MOE, **POOL, **DEEP, "method": "grpo", "model": "deep-moe"},
    "deep-again": {**RL, **KL, **DEEP, **AGAIN, "method": "grpo", "model": "deep"},
    "deep-pool-again": {**RL, **POOL, **DEEP, **AGAIN, "method": "upo", "model": "deep-untied"},
    "deep-distill": {**DISTILL, **DEEP, "model": "deep"},
}
DATA = {"parallel__data": 2, "train__accumulation": 1}
SHARDING = {"parallel__sharding": 2, "train__accumulation": 1}
GRADIENTS = {**SHARDING, "parallel__sharding_stage": 2}
PARAMETERS = {**SHARDING, "parallel__sharding_stage": 3}
TENSOR = {"parallel__tensor": 2}
SEQUENCE = {**TENSOR, "parallel__sequence": "true"}
EXPERT = {**DATA, "parallel__expert": 2}
CONTEXT = {"parallel__context": 2}
PIPELINE = {"parallel__pipeline": 2}
CHUNKS = {**PIPELINE, "parallel__chunks": 2}
#: one rank completes three prompts, one after the other, the other rank one
UNEVEN = {"parallel__micro_batches": "[3,1]", "train__accumulation": 3, "train__batch_size": 1}
#: two ranks with prompts of their own, in layouts of four
HALF = {"parallel__data": 2, "train__accumulation": 2}
#: name -> (processes, (run, layout) of each)
CASES = {
    "texts": (
        2,
        [
            *((name, DATA) for name in ("grpo", "rloo", "online-dpo", "upo")),
            *((name, TENSOR) for name in ("grpo", "rloo-moe")),
            *((name, EXPERT) for name in ("grpo-moe", "grpo-replay", "rloo-moe", "online-dpo-moe", "upo-moe")),
            *((name, PARAMETERS) for name in ("grpo", "grpo-sampler", "grpo-lora", "rloo", "online-dpo-moe", "upo")),
            ("grpo-moe", PARAMETERS | {"parallel__expert": 2}),
            *(("grpo", layout | UNEVEN) for layout in (DATA, GRADIENTS, PARAMETERS)),
            *(("grpo-moe", layout | UNEVEN) for layout in (EXPERT, PARAMETERS | {"parallel__expert": 2})),
            ("grpo", CONTEXT),
            *((name, layout) for name in ("grpo-replay", "grpo-replay-again") for layout in (CONTEXT, SEQUENCE)),
            ("grpo-replay-again", CONTEXT | {"parallel__context_attention": "ring"}),
            *(("grpo-pool", layout) for layout in (DATA, PARAMETERS, TENSOR)),
            *(("grpo-moe-pool", layout) for layout in (EXPERT, EXPERT | UNEVEN, PARAMETERS | {"parallel__expert": 2})),
        ],
    ),
    "pipelines": (
        2,
        [
            *((name, PIPELINE) for name in ("deep", "deep-moe", "deep-online-dpo", "deep-pool", "deep-again")),
            *((name, CHUNKS) for name in ("deep-moe", "deep-rloo", "deep-upo", "deep-pool-again")),
        ],
    ),
    "four": (
        4,
        [
            ("grpo-moe", EXPERT | TENSOR),
            ("grpo-moe", EXPERT | SEQUENCE),
            ("grpo-moe", EXPERT | CONTEXT),
            ("grpo-moe", {**DATA, **SHARDING, "train__batch_size": 1, "parallel__expert": 4}),
            ("grpo", PARAMETERS | TENSOR),
            ("grpo-moe", {**DATA, **PARAMETERS, "train__batch_size": 1, "parallel__expert": 2}),
            ("deep", PIPELINE | TENSOR),
            ("deep", PIPELINE | CONTEXT),
            ("deep", {"parallel__pipeline": 4}),
            ("grpo-replay", EXPERT | CONTEXT),
            ("grpo-replay-again", CONTEXT | SEQUENCE),
            ("grpo-moe-pool", EXPERT | TENSOR),
            ("deep-pool", {**PIPELINE, **HALF}),
            ("deep-moe-pool", {**PIPELINE, **HALF, "parallel__expert": 2}),
            ("deep-again", PIPELINE | TENSOR),
            ("deep-moe", {**PIPELINE, **HALF, "parallel__expert": 2}),
            ("deep-moe", {**CHUNKS, "parallel__sharding": 2, "parallel__sharding_stage": 3, "train__accumulation": 2}),
        ],
    ),
    "distillation": (
        2,
        [
            *(("distill", layout) for layout in (DATA, TENSOR, SEQUENCE, GRADIENTS, PARAMETERS, CONTEXT)),
            *(("distill-moe", layout) for layout in (EXPERT, PARAMETERS | {"parallel__expert": 2})),
            *(("deep-distill", layout) for layout in (PIPELINE, CHUNKS)),
            ("distill", PARAMETERS | UNEVEN),
            ("distill-top", TENSOR),
        ],
    ),
    "distillation-four": (
        4,
        [("distill-moe", EXPERT | TENSOR), ("distill", PARAMETERS | TENSOR), ("deep-distill", PIPELINE | TENSOR)],
    ),
}


def label(name, layout):
    return "-".join([name, *(f"{k.rpartition('__')[2]}{v}" for k, v in layout.items() if k.startswith("parallel"))])


@pytest.fixture(scope="module")
def run_words(words, hybrid_home):
    """``run_words(out, name, **layout)``: a run of ``ALONE``; with a pool, of a model that ends at ``ENDS``."""

    def ending(model):
        path = hybrid_home / f"{model}-ends"
        if not path.exists():
            shutil.copytree(hybrid_home / model, path)
            config = json.loads((path / "config.json").read_text())
            (path / "config.json").write_text(json.dumps({**config, "eos_token_id": ENDS}))
        return path

    def make(out, name, **layout):
        options = ALONE[name]
        pool = {"model__path": ending(options["model"])} if "method__rollout_pool" in options else {}
        return words(out, data__eval=hybrid_home / "eval.jsonl", **{**options, **pool, **layout})

    return make


@pytest.fixture(scope="module")
def alone(run_words, tmp_path_factory):
    """Directories of the runs of one process; the eval split leaves one rank of two without a row in its last batch."""
    import erniecore

    place = tmp_path_factory.mktemp("alone")
    for name in ALONE:
        erniecore.run(overrides=run_words(place / name, name), console="none")
    return place


@pytest.fixture(scope="module", params=CASES)
def together(request, run_words, tmp_path_factory):
    """(cases, directory of their runs): all in one launch."""
    place = tmp_path_factory.mktemp("together")
    count, chosen = CASES[request.param]
    cases = [run_words(place / label(name, layout), name, parallel__name="hybrid", **layout) for name, layout in chosen]
    on_ranks(count, f"{HELPERS}:runs", cases, limit=1800.0)
    return chosen, place


def steps(out):
    events = map(json.loads, (out / "events.jsonl").read_text().splitlines())
    return [event for event in events if event["event"] == "step"]


@pytest.mark.multiproc
@pytest.mark.slow
def test_layouts_learn_what_one_process_learns(alone, together, compared):
    cases, place = together
    wrong = []
    for name, layout in cases:
        found = compared(alone / name, place / label(name, layout))
        # the loss of a policy gradient is near 0, so its differences are not taken relative to it
        losses = [np.array([e["loss"] for e in events if e["event"] in ("step", "eval")]) for events in found.events]
        measured = {
            "loss": float(np.abs(losses[0] - losses[1]).max()),
            "tokens": found.of("step", "tokens"),
            "weights": found.weights(),
        }
        print(label(name, layout), measured)
        if measured["loss"] > 1e-6 or measured["tokens"] or measured["weights"] > 1e-5:
            wrong.append((label(name, layout), measured))
    assert not wrong, wrong


@pytest.mark.slow
def test_the_runs_have_something_to_learn(alone):
    for name in ALONE:
        for step in steps(alone / name) if "distill" not in name else ():
            assert step["grad_norm"] > 1e-3, name
            assert step.get("reward/std", 1.0) > 0, name  # further updates make no completions
        if "pool" in name:
            assert any(0 < step.get("begun_earlier", 0.0) < 1 for step in steps(alone / name)), name


@pytest.mark.multiproc
@pytest.mark.slow
def test_a_pipeline_goes_on_with_its_completions_and_its_pool(alone, run_words, compared, tmp_path):
    """Stopped between two updates of a rollout: bit for bit, and as one process does where one goes on with it."""
    import erniecore

    name, layout = "deep-pool-again", {"parallel__name": "hybrid", **CHUNKS}

    def make(out, **more):
        return run_words(tmp_path / out, name, **{"checkpoint__every": 1, **more})

    on_ranks(2, f"{HELPERS}:runs", [make("whole", **layout)])
    assert on_ranks(2, f"{HELPERS}:until", make("stopped", run__until=1, **layout)) == [True, True]
    shutil.copytree(tmp_path / "stopped", tmp_path / "one", ignore=shutil.ignore_patterns("control", "logs"))
    on_ranks(2, f"{HELPERS}:runs", [make("stopped", **layout)])
    erniecore.run(overrides=make("one"), console="none")
    for out in ("stopped", "one"):
        assert [step["step"] for step in steps(tmp_path / out)] == [1, 2, 3]
    assert compared(tmp_path / "whole", tmp_path / "stopped").weights() == 0
    assert compared(alone / name, tmp_path / "one").weights() <= 1e-5


@pytest.mark.multiproc
@pytest.mark.slow
def test_ranks_with_other_numbers_of_passes_do_not_wait_for_each_other(words, tmp_path):
    shared = {"parallel__name": "hybrid", "model": "moe", "train__learning_rate": 1e-30}
    layouts = {"expert": EXPERT, "parameters": PARAMETERS, "both": PARAMETERS | {"parallel__expert": 2}}
    cases = [words(tmp_path / name, **shared, **layout) for name, layout in layouts.items()]
    found = on_ranks(2, f"{DECODING}:decoding", cases)
    for (zero, said), (one, _) in zip(*found, strict=True):
        assert (len(zero), len(one)) == (6, 5)
        np.testing.assert_allclose(zero, one[:2] + one[:4], rtol=1e-5, atol=1e-6)
        assert "generating" in said
