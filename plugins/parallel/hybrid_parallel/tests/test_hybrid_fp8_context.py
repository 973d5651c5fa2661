"""Training in FP8 on ranks that have different positions of each row: the scale of a batch is that of all its positions, so every
number is rounded as on one process.
"""

import numpy as np
import pytest
from erniecore_conformance.processes import on_ranks
from erniecore_hybrid_parallel.positions import whole_rows

HELPERS = __file__.replace("test_hybrid_fp8_context.py", "hybrid_helpers.py")
FP8 = {"quantizer__name": "fp8-qat", "quantizer__hadamard_block": 16, "quantizer__scale_warmup": 1}
#: runs of one process, four rows per step
ALONE = {
    "dense": {"model": "untied", "train__accumulation": 2, **FP8},
    "moe": {"model": "moe", "train__accumulation": 2, "train__recompute": "full", **FP8},
    "mtp": {"model": "moe-mtp", "data__packing": "greedy", "train__batch_size": 1, "train__accumulation": 2, **FP8},
    "dpo": {"model": "untied", "method": "dpo", "train__accumulation": 2, **FP8},
    "block": {
        "model": "untied",
        "train__accumulation": 2,
        "quantizer__name": "fp8-block",
        "quantizer__weight_gradient": "exact",
    },
    "int8": {"model": "untied", "train__accumulation": 2, **FP8, "quantizer__name": "w8a8-qat"},
}
#: processes -> (run, degrees)
CASES = {
    2: [(name, {"context": 2}) for name in ALONE],
    4: [
        ("dense", {"context": 4}),
        ("dense", {"context": 2, "tensor": 2}),
        ("dense", {"context": 2, "tensor": 2, "sequence": "true"}),
        ("dense", {"context": 2, "pipeline": 2}),
        ("dense", {"context": 2, "sharding": 2, "sharding_stage": 3}),
        ("moe", {"context": 2, "tensor": 2}),
        ("moe", {"context": 2, "pipeline": 2}),
        ("moe", {"context": 2, "data": 2, "expert": 2}),
    ],
}


def label(name, degrees):
    return "-".join([name, *(f"{axis}{size}" for axis, size in degrees.items())])


@pytest.fixture(scope="module")
def alone(words, tmp_path_factory):
    import erniecore

    place = tmp_path_factory.mktemp("alone")
    for name, options in ALONE.items():
        erniecore.run(overrides=words(place / name, checkpoint__export="false", **options), console="none")
    return place


@pytest.mark.multiproc
@pytest.mark.slow
@pytest.mark.parametrize("count", CASES)
def test_layouts_give_the_numbers_of_one_process(alone, words, compared, tmp_path, count):
    runs = []
    for name, degrees in CASES[count]:
        rows = int(degrees.get("data", 1)) * int(degrees.get("sharding", 1))
        options = {**ALONE[name], "train__accumulation": 2 // rows, "parallel__name": "hybrid"}
        options |= {f"parallel__{axis}": size for axis, size in degrees.items()}
        runs.append(words(tmp_path / label(name, degrees), checkpoint__export="false", **options))
    on_ranks(count, f"{HELPERS}:runs", runs, limit=1800.0)
    wrong = []
    for name, degrees in CASES[count]:
        print(label(name, degrees), end=" ")
        found = compared(alone / name, tmp_path / label(name, degrees))
        measured = {key: found.of("step", key) for key in ("loss", "grad_norm", "tokens")}
        # one number on the other side of the middle between two codes, which are 6 % apart, moves a loss by some 1e-6
        measured |= {"eval": found.of("eval", "loss") if "dpo" not in name else 0.0, "weights": found.weights()}
        print(measured)
        limits = {"loss": 1e-6, "grad_norm": 1e-5, "tokens": 0, "eval": 1e-5, "weights": 1e-5}
        wrong += [(label(name, degrees), key, measured[key]) for key in limits if measured[key] > limits[key]]
    assert not wrong, wrong


class Padded:
    """A shard of rows that are padded to a multiple of 4."""

    @staticmethod
    def padded(length):
        return -(-length // 4) * 4


def test_what_is_added_at_the_end_repeats_the_last_position():
    import paddle

    ids = paddle.to_tensor([[5, 6, 7, 8, 9]])
    documents = paddle.to_tensor([[[2], [2], [5], [5], [5]]], "int32").reshape([1, 1, 5, 1])
    found, places, ends = whole_rows(Padded(), ids, None, None, documents)
    assert found.tolist() == [[5, 6, 7, 8, 9, 9, 9, 9]]
    assert places.tolist() == [[0, 1, 2, 3, 4, 4, 4, 4]]
    assert ends.tolist() == [[2, 2, 8, 8, 8, 5, 6, 7]]  # columns 2 to 4 are seen to the end, those beyond by nobody
    seen = [[column for column in range(8) if column <= row < ends[0, column]] for row in range(8)]
    assert seen[4] == seen[5] == seen[6] == seen[7] == [2, 3, 4]
    assert np.array(ends).dtype == np.int32
