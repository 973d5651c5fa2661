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
    # one rank has no row in the last batch of the evaluation: it has no hits to look for
    "accurate": {"train__accumulation": 2, "method__accuracy": "true", "train__loss_chunk": 8},
    "neftune": {"train__accumulation": 2, "method__neftune_alpha": 15.0, "data__packing": "none"},
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
    # one micro-step on every number of ranks: what runs is drawn for each
    "elastic": {
        "model": "moe",
        "method": "elastic-sft",
        "train__batch_size": 4,
        "method__widths": "[4]",
        "method__expert_groups": 2,
        "method__width_probability": 0.7,
        "method__selected": "[1]",
        "method__selected_probability": 0.7,
    },
    "vera": {"train__accumulation": 2, "adapter__name": "vera", "adapter__rank": 8, "adapter__d_initial": 1.0},
    "vera-moe": {
        "model": "moe",
        "train__accumulation": 2,
        "adapter__name": "vera",
        "adapter__rank": 8,
        "adapter__d_initial": 1.0,
    },
    "oft": {"model": "untied", "train__accumulation": 2, "adapter__name": "oft", "adapter__block_size": 8},
    "oft-moe": {"model": "moe", "train__accumulation": 2, "adapter__name": "oft", "adapter__block_size": 8},
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
RING = {**CONTEXT, "parallel__context_attention": "ring"}
FOUR = {"parallel__data": 2, "parallel__sharding": 2, "train__accumulation": 1, "train__batch_size": 1}
#: four rows per step: three on one rank, one on the other
UNEVEN = {"parallel__micro_batches": "[3,1]", "train__accumulation": 3, "train__batch_size": 1}
#: processes -> (run, layout): each run, each layout with models of either kind, and each pair of kinds of parallelism
CASES = {
    2: [
        *(
            (name, layout)
            for layout, names in (
                (DATA, ("moe", "dpo-looked-up", "kto", "kto-pair", "distill", "reward")),
                (SHARDING, ("untied", "dpo", "lora-moe")),
                (GRADIENTS, ("moe", "dpo-untied", "lora")),
                (PARAMETERS, ("untied", "moe", "dpo-moving", "lora-untied", "accurate")),
                (TENSOR, ("dense", "untied", "moe", "dpo-untied", "lora-moe", "dpo-looked-up", "kto", "reward")),
                (EXPERT, ("moe", "dpo-moe")),
                (SEQUENCE, ("mtp", "packed", "lora-moe")),
                (CONTEXT, ("mtp", "packed", "dpo-moe", "lora-moe")),
                (RING, ("dense", "mtp", "packed", "dpo-moe", "lora-moe", "vera")),
            )
            for name in names
        ),
        ("mtp", EXPERT | {"train__accumulation": 2}),
        ("moe", GRADIENTS | {"parallel__expert": 2}),
        ("moe", PARAMETERS | {"parallel__expert": 2}),
        *(("neftune", layout) for layout in (DATA, PARAMETERS, TENSOR)),
        *(("vl", layout) for layout in (TENSOR, PARAMETERS | {"parallel__expert": 2})),
        *(("elastic", {**layout, "train__batch_size": 2}) for layout in (DATA, GRADIENTS, EXPERT)),
        ("elastic", TENSOR),
        *(("vera", layout) for layout in (DATA, PARAMETERS, CONTEXT, TENSOR, SEQUENCE)),
        ("vera-moe", EXPERT),
        *(("oft", layout) for layout in (TENSOR, SEQUENCE)),
        ("reward", SEQUENCE),
        ("oft-moe", EXPERT),
        *((name, DATA | UNEVEN) for name in ("dpo", "kto", "mtp")),
        *(("mtp", layout | UNEVEN) for layout in (GRADIENTS, PARAMETERS, EXPERT)),
    ],
    4: [
        ("moe", DATA | TENSOR),
        ("mtp", DATA | TENSOR | UNEVEN),
        ("untied", SHARDING | TENSOR),
        ("lora-moe", EXPERT | TENSOR),
        ("moe", GRADIENTS | TENSOR | {"parallel__expert": 2}),
        ("mtp", FOUR | {"parallel__expert": 2}),
        ("mtp", FOUR | {"parallel__expert": 4, "parallel__sharding_stage": 2}),
        ("dpo-untied", PARAMETERS | TENSOR),
        ("untied", FOUR | {"parallel__sharding_stage": 3, "train__accumulation": 1}),
        ("untied", FOUR | {"parallel__sharding_stage": 2, "train__accumulation": 1}),
        ("dense", {"parallel__tensor": 4}),
        ("packed", CONTEXT | SEQUENCE),
        ("untied", {"parallel__context": 4}),
        ("untied", RING | {"parallel__context": 4}),
        ("packed", RING | {"parallel__context": 4}),
        ("packed", RING | SEQUENCE),
        ("moe", RING | TENSOR),
        ("dpo-moe", RING | SHARDING),
        ("moe", RING | EXPERT),
        ("moe", RING | PARAMETERS | {"parallel__expert": 2}),
        ("moe", CONTEXT | TENSOR),
        ("dpo-moe", CONTEXT | SHARDING),
        ("moe", CONTEXT | EXPERT),
        ("moe", CONTEXT | PARAMETERS | {"parallel__expert": 2}),
        ("moe", SEQUENCE | EXPERT),
        ("untied", SEQUENCE | GRADIENTS),
        ("moe", SEQUENCE | PARAMETERS),
    ],
}
#: further layouts of these runs: `make test-all`
FURTHER = {
    2: [
        *((name, DATA) for name in ("dense", "untied", "dpo-moe", "lora-untied")),
        ("moe", SHARDING),
        ("untied", GRADIENTS),
        *((name, PARAMETERS) for name in ("dense", "dpo-moe", "lora-moe")),
        *((name, TENSOR) for name in ("dpo-moe", "lora-untied", "dpo-moving")),
        ("lora-moe", EXPERT),
        ("untied", SEQUENCE),
        ("untied", CONTEXT),
    ],
    4: [
        ("dense", GRADIENTS | TENSOR),
        ("dpo-moe", EXPERT | TENSOR),
        ("moe", PARAMETERS | TENSOR),
        ("lora-moe", CONTEXT | SEQUENCE),
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


@pytest.fixture(
    scope="module",
    params=[
        *(pytest.param(count, id=f"{count}") for count in CASES),
        *(pytest.param(-count, id=f"{count}-further", marks=pytest.mark.combination) for count in FURTHER),
    ],
)
def together(request, words, tmp_path_factory):
    """(cases, directory of their runs): all in one launch. The parameter: the number of processes, negative for the
    further cases."""
    place, count = tmp_path_factory.mktemp("together"), abs(request.param)
    chosen = CASES[count] if request.param > 0 else FURTHER[count]
    cases = [
        words(place / label(name, layout), **{**ALONE[name], **FINAL, "parallel__name": "hybrid", **layout})
        for name, layout in chosen
    ]
    on_ranks(count, f"{HELPERS}:runs", cases, limit=1800.0)
    return chosen, place


@pytest.mark.multiproc
@pytest.mark.slow
def test_layouts_give_the_numbers_of_one_process(alone, together, compared):
    cases, place = together
    wrong = []
    for name, layout in cases:
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
    cases, place = together
    runs = {label(*case): alone / case[0] for case in cases if case[0] == "dpo-looked-up"}
    assert len(runs) == 2
    for name, one in runs.items():
        files = [list((d / "reference").glob("*.safetensors")) for d in (place / name, one)]
        assert [len(found) for found in files] == [1, 1], name
        assert (files[0][0].name == files[1][0].name) == ("tensor" not in name), "of the parts of weights, or of all"
        carried, expected = (read(d) for d in (place / name, one))
        assert (carried["reference.keys"] == expected["reference.keys"]).all()
        np.testing.assert_allclose(carried["reference.values"], expected["reference.values"], rtol=1e-6)


def read(out):
    return load_checkpoint(out / "ckpt" / "step-00000003").tensors["carried"]
