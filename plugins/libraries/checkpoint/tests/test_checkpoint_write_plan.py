"""Who writes what: every tensor once, by one that holds it, the bytes spread evenly, and all owners at the same time."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from erniecore_checkpoint.tensors import num_bytes
from erniecore_checkpoint.write_plan import divide
from hypothesis import given
from hypothesis import strategies as st

RANKS = 4
tensors = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=3),
    st.tuples(st.tuples(st.sampled_from(["F32", "BF16"]), st.tuples(st.integers(0, 40))), st.sets(st.integers(0, 3))),
    max_size=12,
)
groups = st.dictionaries(st.sampled_from(["model", "optim", "ema"]), tensors, max_size=3)


def divided(groups, max_bytes=120):
    specs = {group: {name: spec for name, (spec, _) in members.items()} for group, members in groups.items()}
    holders = {(g, n): sorted(ranks) for g, members in groups.items() for n, (_, ranks) in members.items() if ranks}
    return specs, holders, divide(specs, holders, max_bytes)


@given(groups)
def test_every_tensor_is_in_one_file_of_one_that_holds_it(groups):
    specs, holders, plan = divided(groups)
    written = Counter((file.group, name) for file in plan.files for name in file.tensors)
    assert written == Counter({(g, n): 1 for g, members in specs.items() for n in members})
    for file in plan.files:
        assert all(file.owner in holders.get((file.group, name), [0]) for name in file.tensors)
        assert all(file.owner == plan.owners[file.group, name] for name in file.tensors)
    assert {file.group for file in plan.files} == set(specs)
    assert len({file.name for file in plan.files}) == len(plan.files)


@given(groups, st.integers(1, 300))
def test_rounds_hand_out_each_owners_tensors_in_the_order_of_its_files(groups, ahead):
    from erniecore_checkpoint.safetensors_write import file_order

    _, _, plan = divided(groups)
    rounds = list(plan.rounds(ahead))
    for owner in range(RANKS):
        taken = [key for keys in rounds for key in keys if plan.owners[key] == owner]
        assert taken == [(file.group, name) for file in plan.of(owner) for name in file_order(file.tensors)]
    size = {(file.group, n): num_bytes(*spec) for file in plan.files for n, spec in file.tensors.items()}
    for keys in rounds:
        for owner in range(RANKS):
            own = [size[key] for key in keys if plan.owners[key] == owner]
            assert len(own) <= 1 or sum(own) <= ahead


@pytest.mark.parametrize("count", [2, 3, 8])
def test_bytes_are_balanced_to_the_largest_tensor(count):
    rng = np.random.default_rng(count)
    specs = {"model": {f"t{i}": ("F32", (int(size),)) for i, size in enumerate(rng.integers(1, 1000, 200))}}
    plan = divide(specs, {("model", name): range(count) for name in specs["model"]})
    sums = Counter()
    for file in plan.files:
        sums[file.owner] += sum(num_bytes(*spec) for spec in file.tensors.values())
    assert max(sums.values()) - min(sums.values()) <= 4000
    assert [file.owner for file in plan.files] == list(range(count))


def test_what_only_one_can_give_counts_in_the_balance():
    specs = {"model": {"own": ("F32", (100,)), **{f"t{i}": ("F32", (10,)) for i in range(10)}}}
    plan = divide(specs, {("model", n): [0] if n == "own" else [0, 1] for n in specs["model"]})
    assert {plan.owners["model", f"t{i}"] for i in range(10)} == {1}
