"""Every layout gives the numbers of one process: losses, norms, evaluation, weights after three steps."""

import numpy as np
import pytest
from erniecore_checkpoint.reader import load_checkpoint
from erniecore_conformance.processes import on_ranks

HELPERS = __file__.replace("test_hybrid_parity.py", "hybrid_helpers.py")
#: runs of one process, with four rows per step
ALONE = {
    "dense": {"train__accumulation": 2},
    "untied": {"model": "untied", "train__accumulation": 2, "train__ema": 0.9, "train__recompute": "full"},
    "moe": {"model": "moe", "train__accumulation": 2, "model__router_aux_loss": 0.01},
    "vl": {"model": "vl", "train__accumulation": 2, "model__router_aux_loss": 0.01},
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
    "kto": {"method": "kto", "train__accumulation": 2},
    "distill": {"method": "distill", "train__accumulation": 2},
    # two answers differ by one number: gradients are almost nothing, and Adam makes whole steps of rounding
    "reward": {"method": "reward", "train__accumulation": 2, "train__learning_rate": 3e-5},
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
#: what is compared is in the checkpoint
FINAL = {"checkpoint__export": "false"}
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
            for layout, others in (
                (DATA, ("dpo-moe", "lora-untied", "dpo-looked-up", "kto", "kto-pair", "distill", "reward")),
                (SHARDING, ("dpo", "lora-moe")),
                (GRADIENTS, ("dpo-untied", "lora")),
                (PARAMETERS, ("dpo-moe", "dpo-moving", "lora-untied", "lora-moe")),
                (TENSOR, ("dpo-untied", "dpo-moe", "lora-untied", "lora-moe", "dpo-moving", "dpo-looked-up", "kto")),
            )
            for name in ("untied", "moe", *others)
        ),
        *(("dense", layout) for layout in (DATA, PARAMETERS, TENSOR)),
        *((name, EXPERT) for name in ("moe", "lora-moe", "dpo-moe")),
        ("mtp", EXPERT | {"train__accumulation": 2}),
        ("moe", GRADIENTS | {"parallel__expert": 2}),
        *((name, SEQUENCE) for name in ("untied", "mtp", "packed", "lora-moe")),
        *((name, CONTEXT) for name in ("untied", "mtp", "packed", "dpo-moe", "lora-moe")),
        ("moe", PARAMETERS | {"parallel__expert": 2}),
        *(("vl", layout) for layout in (TENSOR, PARAMETERS | {"parallel__expert": 2})),
    ],
    4: [
        ("moe", DATA | TENSOR),
        ("untied", SHARDING | TENSOR),
        ("dense", GRADIENTS | TENSOR),
        *((name, EXPERT | TENSOR) for name in ("lora-moe", "dpo-moe")),
        ("moe", GRADIENTS | TENSOR | {"parallel__expert": 2}),
        ("mtp", FOUR | {"parallel__expert": 2}),
        ("mtp", FOUR | {"parallel__expert": 4, "parallel__sharding_stage": 2}),
        *((name, PARAMETERS | TENSOR) for name in ("dpo-untied", "moe")),
        ("untied", FOUR | {"parallel__sharding_stage": 3, "train__accumulation": 1}),
        ("untied", FOUR | {"parallel__sharding_stage": 2, "train__accumulation": 1}),
        ("dense", {"parallel__tensor": 4}),
        *((name, CONTEXT | SEQUENCE) for name in ("packed", "lora-moe")),
        ("untied", {"parallel__context": 4}),
        ("moe", CONTEXT | TENSOR),
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
        erniecore.run(overrides=words(place / name, **{**options, **FINAL}), console="none")
    return place


@pytest.fixture(scope="module", params=sorted(CASES))
def together(request, words, tmp_path_factory):
    """(number of processes, directory of their runs): all of them in one launch."""
    place = tmp_path_factory.mktemp("together")
    cases = [
        words(place / label(name, layout), **{**ALONE[name], **FINAL, "parallel__name": "hybrid", **layout})
        for name, layout in CASES[request.param]
    ]
    on_ranks(request.param, f"{HELPERS}:runs", cases, limit=1800.0)
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


@pytest.mark.multiproc
@pytest.mark.slow
@pytest.mark.parametrize("together", [2], indirect=True)
def test_ranks_keep_one_file_of_reference_values_and_each_checkpoint_has_all(alone, together):
    count, place = together
    runs = {label(*case): alone / case[0] for case in CASES[count] if case[0] == "dpo-looked-up"}
    for name, one in runs.items():
        files = [list((d / "reference").glob("*.safetensors")) for d in (place / name, one)]
        assert [len(found) for found in files] == [1, 1], name
        assert (files[0][0].name == files[1][0].name) == ("tensor" not in name), "of the parts of weights, or of all"
        carried, expected = (read(d) for d in (place / name, one))
        assert (carried["reference.keys"] == expected["reference.keys"]).all()
        np.testing.assert_allclose(carried["reference.values"], expected["reference.values"], rtol=1e-6)


def read(out):
    return load_checkpoint(out / "ckpt" / "step-00000003").tensors["carried"]
