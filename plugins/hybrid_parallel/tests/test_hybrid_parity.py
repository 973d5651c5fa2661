"""Every layout gives the numbers of one process: losses, norms, evaluation, weights after three steps."""

import pytest

from erniecore.testing.processes import on_ranks

HELPERS = __file__.replace("test_hybrid_parity.py", "hybrid_helpers.py")
#: runs of one process, with four rows per step
ALONE = {
    "dense": {"train__accumulation": 2},
    "untied": {"model": "untied", "train__accumulation": 2, "train__ema": 0.9, "train__recompute": "full"},
    "moe": {"model": "moe", "train__accumulation": 2, "model__router_aux_loss": 0.01},
    "mtp": {
        "model": "moe-mtp",
        "train__accumulation": 4,
        "train__batch_size": 1,
        "train__recompute": "full",
        "model__router_aux_loss": 0.01,
        "model__router_z_loss": 0.001,
        "model__router_orthogonal_loss": 0.01,
    },
    "packed": {
        "model": "moe-mtp",
        "data__packing": "greedy",
        "train__batch_size": 1,
        "train__accumulation": 2,
        "model__router_aux_loss": 0.01,
    },
    "dpo-moe": {"model": "moe", "method": "dpo", "train__accumulation": 2},
    "dpo": {"method": "dpo", "train__accumulation": 2},
    "dpo-untied": {"model": "untied", "method": "dpo", "train__accumulation": 2},
    "dpo-moving": {"method": "dpo", "train__accumulation": 2, "method__reference_update_steps": 2},
    "dpo-looked-up": {"method": "dpo", "train__accumulation": 2, "method__reference": "precomputed"},
    "kto-pair": {"method": "kto-pair", "train__accumulation": 2},
    "lora": {"train__accumulation": 2, "adapter__name": "lora", "adapter__rank": 4},
    "lora-untied": {"model": "untied", "train__accumulation": 2, "adapter__name": "lora", "adapter__rank": 4},
    # a gradient of A is almost nothing at first, and Adam makes whole steps of rounding: smaller steps are compared
    "lora-moe": {
        "model": "moe",
        "train__accumulation": 2,
        "train__learning_rate": 3e-4,
        "adapter__name": "lora",
        "adapter__rank": 4,
    },
}
#: what the ranks do; those that see different rows have a micro-batch each
DATA = {"parallel__data": 2, "train__accumulation": 1}
SHARDING = {"parallel__sharding": 2, "train__accumulation": 1}
GRADIENTS = {**SHARDING, "parallel__sharding_stage": 2}
PARAMETERS = {**SHARDING, "parallel__sharding_stage": 3}
TENSOR = {"parallel__tensor": 2}
EXPERT = {**DATA, "parallel__expert": 2}
SEQUENCE = {**TENSOR, "parallel__sequence": "true"}
CONTEXT = {"parallel__context": 2}
FOUR = {"parallel__data": 2, "parallel__sharding": 2, "train__accumulation": 1, "train__batch_size": 1}
#: processes -> (run, layout)
CASES = {
    2: [
        *(
            (name, layout)
            for layout in (DATA, SHARDING, GRADIENTS, PARAMETERS, TENSOR)
            for name in ALONE
            if name not in ("mtp", "packed", "dpo-moving", "dpo-looked-up", "kto-pair")
        ),
        *((name, EXPERT) for name in ("moe", "lora-moe", "dpo-moe")),
        ("mtp", EXPERT | {"train__accumulation": 2}),
        *(("dpo-moving", layout) for layout in (PARAMETERS, TENSOR)),
        ("dpo-looked-up", TENSOR),
        ("kto-pair", DATA),
        ("moe", GRADIENTS | {"parallel__expert": 2}),
        *((name, SEQUENCE) for name in ("untied", "mtp", "packed", "dpo-moe", "lora-moe")),
        *((name, CONTEXT) for name in ("dense", "untied", "moe", "mtp", "packed", "dpo-moe", "lora-moe")),
        ("moe", PARAMETERS | {"parallel__expert": 2}),
    ],
    4: [
        *((name, DATA | TENSOR) for name in ("dense", "moe", "dpo-untied")),
        *((name, SHARDING | TENSOR) for name in ("untied", "moe", "dpo")),
        *((name, GRADIENTS | TENSOR) for name in ("dense", "moe")),
        *((name, EXPERT | TENSOR) for name in ("moe", "lora-moe", "dpo-moe")),
        ("moe", GRADIENTS | TENSOR | {"parallel__expert": 2}),
        ("mtp", FOUR | {"parallel__expert": 2}),
        ("mtp", FOUR | {"parallel__expert": 4, "parallel__sharding_stage": 2}),
        *((name, PARAMETERS | TENSOR) for name in ("dense", "dpo-untied", "moe")),
        ("untied", FOUR | {"parallel__sharding_stage": 3, "train__accumulation": 1}),
        ("dense", FOUR),
        ("untied", FOUR | {"parallel__sharding_stage": 2, "train__accumulation": 1}),
        ("dense", {"parallel__tensor": 4}),
        *((name, CONTEXT | SEQUENCE) for name in ("packed", "lora-moe", "dpo-untied")),
        ("untied", {"parallel__context": 4}),
        ("moe", CONTEXT | TENSOR),
        ("moe", CONTEXT | DATA),
        ("dpo-moe", CONTEXT | SHARDING),
        ("moe", CONTEXT | EXPERT),
        ("moe", CONTEXT | PARAMETERS | {"parallel__expert": 2}),
        ("moe", SEQUENCE | EXPERT),
        ("untied", SEQUENCE | GRADIENTS),
        ("moe", SEQUENCE | PARAMETERS),
    ],
}


def label(name, layout):
    degrees = [
        f"{k.removeprefix('parallel__').removeprefix('sharding_')}{v}"
        for k, v in layout.items()
        if k.startswith("parallel")
    ]
    return f"{name}-{'-'.join(degrees)}"


@pytest.fixture(scope="module")
def alone(words, tmp_path_factory):
    """Directories of the runs of one process."""
    import erniecore

    place = tmp_path_factory.mktemp("alone")
    for name, options in ALONE.items():
        erniecore.run(overrides=words(place / name, **options), console="none")
    return place


@pytest.fixture(scope="module", params=sorted(CASES))
def together(request, words, tmp_path_factory):
    """(number of processes, directory of their runs): all of them in one launch."""
    place = tmp_path_factory.mktemp("together")
    cases = [
        words(place / label(name, layout), **{**ALONE[name], "parallel__name": "hybrid", **layout})
        for name, layout in CASES[request.param]
    ]
    on_ranks(request.param, f"{HELPERS}:runs", cases)
    return request.param, place


@pytest.mark.multiproc
@pytest.mark.slow
def test_layouts_give_the_numbers_of_one_process(alone, together, compared):
    count, place = together
    wrong = []
    for name, layout in CASES[count]:
        print(label(name, layout), end=" ")
        try:
            compared(alone / name, place / label(name, layout)).assert_close()
        except AssertionError as error:
            wrong.append(f"{label(name, layout)}: {error}")
    assert not wrong, wrong
