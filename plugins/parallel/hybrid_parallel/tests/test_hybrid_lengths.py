"""DoRA's lengths of outputs and PiSSA's start from singular values, of matrices that ranks share: the numbers of one process, and
the adapter that one process writes."""

import numpy as np
import pytest
from erniecore_checkpoint.safetensors_io import open_tensors
from erniecore_conformance.processes import on_ranks

HELPERS = __file__.replace("test_hybrid_lengths.py", "hybrid_helpers.py")
#: what is almost no gradient stays almost no step: Adam would make whole steps of rounding
SAFE = {"train__accumulation": 2, "optimizer__epsilon": 1e-5, "adapter__rank": 4, "adapter__name": "lora"}
DORA, PISSA = {**SAFE, "adapter__name": "dora"}, {**SAFE, "adapter__init": "pissa"}
ALONE = {
    "dora": {"model": "untied", **DORA},
    "dora-moe": {"model": "moe", **DORA},
    "pissa": {"model": "untied", **PISSA},
    "pissa-moe": {"model": "moe", **PISSA},
    "both-moe": {"model": "moe", **DORA, "adapter__init": "pissa"},
}
TENSOR = {"parallel__tensor": 2}
SEQUENCE = {**TENSOR, "parallel__sequence": "true"}
EXPERT = {"parallel__data": 2, "parallel__expert": 2, "train__accumulation": 1}
PARAMETERS = {"parallel__sharding": 2, "parallel__sharding_stage": 3, "train__accumulation": 1}
CASES = {
    2: [
        *((name, TENSOR) for name in ("dora", "pissa", "dora-moe", "both-moe")),
        *((name, EXPERT) for name in ("dora-moe", "pissa-moe")),
        *((name, SEQUENCE) for name in ("dora-moe", "pissa-moe")),
    ],
    4: [
        *((name, {**EXPERT, **TENSOR}) for name in ("dora-moe", "pissa-moe", "both-moe")),
        ("dora", {**TENSOR, "parallel__pipeline": 2}),
        *((name, {**PARAMETERS, **TENSOR}) for name in ("dora", "pissa-moe")),
    ],
}


def label(name, layout):
    return "-".join([name, *(f"{key.removeprefix('parallel__')}{value}" for key, value in layout.items())])


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
    on_ranks(request.param, f"{HELPERS}:runs", cases, limit=1800.0)
    return request.param, place


def written(out):
    tensors = open_tensors(out / "adapter" / "adapter_model.safetensors")
    return {name: np.array(tensor.load()) for name, tensor in tensors.items()}


@pytest.mark.multiproc
@pytest.mark.slow
def test_layouts_give_the_numbers_of_one_process(alone, together, compared):
    count, place = together
    wrong = []
    for name, layout in CASES[count]:
        print(label(name, layout), end=" ")
        try:
            compared(alone / name, place / label(name, layout)).assert_close()
            one, other = written(alone / name), written(place / label(name, layout))
            assert {n: a.shape for n, a in one.items()} == {n: a.shape for n, a in other.items()}
            assert max(np.abs(one[n] - other[n]).max() for n in one) <= 1e-5
        except AssertionError as error:
            wrong.append(f"{label(name, layout)}: {error}")
    assert not wrong, wrong
