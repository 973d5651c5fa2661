"""Pipelines give the numbers of one process: losses, norms, evaluation, metrics of routers, weights after three steps."""

import pytest
from erniecore_conformance.processes import on_ranks

HELPERS = __file__.replace("test_hybrid_pipeline.py", "hybrid_helpers.py")
#: runs of one process, with four micro-batches per step
ALONE = {
    "dense": {"model": "deep", "train__layer_lr_decay": 0.7, "method__accuracy": "true"},
    "untied": {"model": "deep-untied", "train__ema": 0.9, "train__recompute": "full"},
    "moe": {"model": "deep-moe", "model__router_aux_loss": 0.01, "model__router_z_loss": 0.001},
    "elastic": {
        "model": "deep-moe",
        "method": "elastic-sft",
        "method__depths": "[2, 3]",
        "method__depth_probability": 0.6,
        "method__whole": 1,
        "method__widths": "[4]",
        "model__router_aux_loss": 0.01,
    },
    "dpo": {"model": "deep", "method": "dpo"},
    "orpo": {"model": "deep-untied", "method": "orpo"},
    # two answers differ by one number: gradients are almost nothing, and Adam makes whole steps of rounding
    "reward": {"model": "deep", "method": "reward", "train__learning_rate": 3e-5},
    "lora": {"model": "deep", "adapter__name": "lora", "adapter__rank": 4},
    "lora-moe": {"model": "deep-moe", "train__learning_rate": 3e-4, "adapter__name": "lora", "adapter__rank": 4},
    "dpo-lora": {"model": "deep", "method": "dpo", "adapter__name": "lora", "adapter__rank": 4},
    "vera": {"model": "deep", "adapter__name": "vera", "adapter__rank": 8, "adapter__d_initial": 1.0},
    "dpo-oft": {"model": "deep", "method": "dpo", "adapter__name": "oft", "adapter__block_size": 8},
    "dpo-moving": {"model": "deep", "method": "dpo", "method__reference_update_steps": 2},
    "dpo-looked-up": {"model": "deep", "method": "dpo", "method__reference": "precomputed"},
    "kto": {"model": "deep", "method": "kto"},
    "kto-pair": {"model": "deep", "method": "kto-pair"},
    "wint8-lora": {"model": "deep", "adapter__name": "lora", "adapter__rank": 4, "quantizer__name": "wint8"},
}
TWO = {"parallel__pipeline": 2}
CHUNKS = {**TWO, "parallel__chunks": 2}
UNEVEN = {**TWO, "parallel__split": "[3, 1]"}
DATA = {**TWO, "parallel__data": 2, "train__accumulation": 2}
SHARDING = {**TWO, "parallel__sharding": 2, "train__accumulation": 2}
GRADIENTS = {**SHARDING, "parallel__sharding_stage": 2}
PARAMETERS = {**SHARDING, "parallel__sharding_stage": 3}
TENSOR = {**TWO, "parallel__tensor": 2}
SEQUENCE = {**TENSOR, "parallel__sequence": "true"}
CONTEXT = {**TWO, "parallel__context": 2}
#: processes -> (run, layout)
CASES = {
    2: [
        *((name, TWO) for name in ("dense", "moe", "reward", "lora-moe", "dpo-lora", "vera", "dpo-oft")),
        *((name, TWO) for name in ("dpo-moving", "dpo-looked-up", "kto", "kto-pair", "wint8-lora")),
        *((name, CHUNKS) for name in ("untied", "moe", "orpo", "lora")),
        ("moe", UNEVEN),
        ("elastic", CHUNKS),
    ],
    4: [
        ("dense", {"parallel__pipeline": 4}),
        ("moe", {"parallel__pipeline": 4}),
        ("lora", DATA),
        ("dpo", SHARDING),
        ("moe", GRADIENTS),
        ("dense", TENSOR),
        ("moe", {**DATA, "parallel__expert": 2}),
        ("moe", {**CHUNKS, **TENSOR}),
        *((name, CONTEXT) for name in ("dense", "moe", "dpo")),
        *((name, {**CHUNKS, **CONTEXT}) for name in ("untied", "lora-moe")),
        *((name, {**CONTEXT, "parallel__context_attention": "ring"}) for name in ("moe", "dpo")),
        *((name, SEQUENCE) for name in ("dense", "moe")),
        ("untied", {**CHUNKS, **SEQUENCE}),
        *((name, PARAMETERS) for name in ("dense", "moe", "lora", "dpo-moving")),
        *((name, {**CHUNKS, **PARAMETERS}) for name in ("untied", "orpo")),
        ("moe", {**PARAMETERS, "parallel__expert": 2}),
    ],
}
#: metrics that must be those of the whole model, wherever its parts are
WHOLE = ("router/aux", "router/z", "mtp/loss", "moe/max_load", "accuracy", "rewards/accuracies")
#: run -> a metric that is the sign of rounding there: values computed once and those of the first step are the same but for it
SIGNS = {"dpo-looked-up": "rewards/accuracies"}


def label(name, layout):
    return "-".join([name, *(f"{key.removeprefix('parallel__')}{value}" for key, value in layout.items())])


@pytest.fixture(scope="module")
def alone(words, tmp_path_factory):
    """Directories of the runs of one process."""
    import erniecore

    place = tmp_path_factory.mktemp("alone")
    for name, options in ALONE.items():
        erniecore.run(overrides=words(place / name, **{"train__accumulation": 4, **options}), console="none")
    return place


@pytest.fixture(scope="module", params=sorted(CASES))
def together(request, words, tmp_path_factory):
    """(number of processes, directory of their runs): all of them in one launch."""
    place = tmp_path_factory.mktemp("together")
    cases = [
        words(
            place / label(name, layout),
            **{"train__accumulation": 4, "parallel__name": "hybrid", **ALONE[name], **layout},
        )
        for name, layout in CASES[request.param]
    ]
    on_ranks(request.param, f"{HELPERS}:runs", cases, limit=1800.0)
    return request.param, place


def differences(one, other, compared, without=""):
    """What is not as it must be."""
    found = compared(one, other)
    found.assert_close()
    steps = [event for event in found.events[0] if event["event"] == "step"]
    for name in WHOLE:
        assert name == without or name not in steps[0] or found.of("step", name) <= 1e-5, name
    exported = [sorted(p.relative_to(d).as_posix() for p in d.glob("[am]*/*.safetensors")) for d in (one, other)]
    assert exported[0] == exported[1] != []


@pytest.mark.multiproc
@pytest.mark.slow
def test_pipelines_give_the_numbers_of_one_process(alone, together, compared):
    count, place = together
    wrong = []
    for name, layout in CASES[count]:
        print(label(name, layout), end=" ")
        try:
            differences(alone / name, place / label(name, layout), compared, SIGNS.get(name, ""))
        except AssertionError as error:
            wrong.append(f"{label(name, layout)}: {error}")
    assert not wrong, wrong
