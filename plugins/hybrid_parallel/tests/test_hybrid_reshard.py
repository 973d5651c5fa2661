"""A checkpoint of any layout continues on any other: the same weights to the bit, the same next step to rounding."""

from itertools import product
from pathlib import Path

import pytest

from erniecore.testing.processes import on_ranks

HELPERS = Path(__file__).with_name("hybrid_helpers.py")
LAYOUTS = {
    "data": {"parallel__data": 2, "train__accumulation": 1},
    "stage1": {"parallel__sharding": 2, "train__accumulation": 1},
    "stage2": {"parallel__sharding": 2, "parallel__sharding_stage": 2, "train__accumulation": 1},
    "tensor": {"parallel__tensor": 2, "train__accumulation": 2},
}
OPTIONS = {"train__schedule": "constant", "train__ema": 0.5, "checkpoint__average": "false"}


@pytest.fixture(scope="module")
def place(words, tmp_path_factory):
    """``one``: a run of one process; ``A``: two steps on layout A; ``A-B``: its third step on B; ``A-one``: on one."""
    import shutil

    import erniecore

    place = tmp_path_factory.mktemp("reshard")

    def make(name, steps, layout):
        parallel = {"parallel__name": "hybrid", **LAYOUTS[layout]} if layout else {"train__accumulation": 2}
        return words(place / name, **{**OPTIONS, **parallel, "train__max_steps": steps})

    on_ranks(2, f"{HELPERS}:runs", [make(name, 2, name) for name in LAYOUTS])
    pairs = [
        (str(place / a), str(place / f"{a}-{b}{end}"), make(f"{a}-{b}{end}", steps, b))
        for a, b in product(LAYOUTS, LAYOUTS)
        for steps, end in ((2, "-same"), (3, ""))
    ]
    on_ranks(2, f"{HELPERS}:continued", pairs)
    erniecore.run(overrides=make("one", 3, ""), console="none")
    for a in LAYOUTS:
        shutil.copytree(place / a, place / f"{a}-one", ignore=shutil.ignore_patterns("control", "logs"))
        erniecore.run(overrides=make(f"{a}-one", 3, ""), console="none")
    return place


@pytest.mark.multiproc
@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), list(product(LAYOUTS, [*LAYOUTS, "one"])))
def test_the_next_step_is_that_of_one_process(place, compared, before, after):
    found = compared(place / "one", place / f"{before}-{after}")
    assert max(found.weights(group) for group in ("model", "optim", "ema")) <= 1e-5


@pytest.mark.multiproc
@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), list(product(LAYOUTS, LAYOUTS)))
def test_weights_come_back_bit_for_bit(place, before, after):
    """Nothing is trained: what the second layout exports is what the first one had."""
    from safetensors.numpy import load_file

    one, other = (
        load_file(place / name / "model" / "model.safetensors") for name in (before, f"{before}-{after}-same")
    )
    assert one.keys() == other.keys()
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)
