"""A checkpoint of any layout continues on any other: weights, moments and averages to the bit, the next step to rounding."""

import shutil
from itertools import product
from pathlib import Path

import pytest
from erniecore_checkpoint.manifest import read_manifest
from erniecore_ckpt.rewriting import tensor_hashes
from erniecore_conformance.processes import on_ranks

HELPERS = Path(__file__).with_name("hybrid_helpers.py")
TOGETHER = {
    "stage3": {"parallel__sharding": 2, "parallel__sharding_stage": 3, "train__accumulation": 1},
    "sequence": {"parallel__tensor": 2, "parallel__sequence": "true", "train__accumulation": 2},
    "pipeline": {"parallel__pipeline": 2, "train__accumulation": 2},
    "expert": {"parallel__data": 2, "parallel__expert": 2, "train__accumulation": 1},
    "context": {"parallel__context": 2, "train__accumulation": 2},
}
LAYOUTS = ["one", *TOGETHER]
OPTIONS = {"model": "moe", "train__schedule": "constant", "train__ema": 0.5, "checkpoint__export": "false"}
#: the third step is made on the next layout of the list
AFTER = dict(zip(LAYOUTS, [*LAYOUTS[1:], LAYOUTS[0]], strict=True))
STEP = "step-00000002"


@pytest.fixture(scope="module")
def place(words, tmp_path_factory):
    """``A``: two steps on layout A; ``A-B/ckpt``: the same state, read and written by B; ``A-next``: its third step on
    ``AFTER[A]``; ``three``: three steps of one process."""
    import erniecore

    place = tmp_path_factory.mktemp("reshard")

    def make(name, steps, layout, **more):
        parallel = (
            {"parallel__name": "hybrid", **TOGETHER[layout]} if layout in TOGETHER else {"train__accumulation": 2}
        )
        return words(place / name, **{**OPTIONS, **parallel, "train__max_steps": steps, **more})

    def again(a, b):
        return make(f"{a}-{b}", 2, b, run__resume=place / a / "ckpt" / STEP)

    for name, steps in (("one", 2), ("three", 3)):
        erniecore.run(overrides=make(name, steps, "one"), console="none")
    on_ranks(2, f"{HELPERS}:runs", [make(name, 2, name) for name in TOGETHER])
    for a in LAYOUTS:
        shutil.copytree(place / a, place / f"{a}-next", ignore=shutil.ignore_patterns("control", "logs"))
    on_ranks(2, f"{HELPERS}:saved_again", [again(a, b) for a, b in product(LAYOUTS, TOGETHER)])
    on_ranks(1, f"{HELPERS}:saved_again", [again(a, "one") for a in LAYOUTS])
    following = {a: make(f"{a}-next", 3, b) for a, b in AFTER.items()}
    on_ranks(2, f"{HELPERS}:runs", [following[a] for a, b in AFTER.items() if b in TOGETHER])
    erniecore.run(overrides=following[LAYOUTS[-1]], console="none")
    return place


@pytest.mark.multiproc
@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), list(product(LAYOUTS, LAYOUTS)))
def test_every_tensor_comes_back_bit_for_bit(place, before, after):
    found = read_manifest(place / before / "ckpt" / STEP), read_manifest(place / f"{before}-{after}" / "ckpt" / STEP)
    one, other = map(tensor_hashes, found)
    assert {name.partition(":")[0] for name in one} == {"model", "optim", "ema"}
    assert one == other


@pytest.mark.multiproc
@pytest.mark.slow
@pytest.mark.parametrize("before", LAYOUTS)
def test_the_next_step_is_that_of_one_process(place, compared, before):
    found = compared(place / "three", place / f"{before}-next")
    assert max(found.weights(group) for group in ("model", "optim", "ema")) <= 1e-5
