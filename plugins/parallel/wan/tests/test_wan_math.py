"""Outer optimizers, fragments, sparse updates, payloads, masks and the rules, each against what it must equal."""

import hashlib
import json
from dataclasses import asdict

import numpy as np
import pytest
from erniecore_wan import fragments, masks, outer, payload, rounds, rules, sparse


def vector(size, seed=0, scale=1.0):
    return (scale * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


class Regression:
    """Least squares on rows that two sites have; inner SGD."""

    def __init__(self):
        self.x, self.y = vector(96, 1).reshape(24, 4), vector(24, 2)
        self.rows = [slice(0, 16), slice(16, 24)]

    def gradient(self, weights, rows):
        x, y = self.x[rows].astype(np.float64), self.y[rows].astype(np.float64)
        return x.T @ (x @ weights - y) / len(x)

    def inner(self, weights, rows, steps, rate=0.1):
        for _ in range(steps):
            weights = weights - rate * self.gradient(weights, rows)
        return weights


def train(problem, rule, steps, rounds, overlap_mix=None):
    anchor, state = np.zeros(4, np.float32), {}
    for _ in range(rounds):
        deltas = [(anchor - problem.inner(anchor, rows, steps)).astype(np.float32) for rows in problem.rows]
        mean = rules.weighted_mean(deltas, [16, 8], [1.0, 1.0])
        after, state = outer.outer_step(rule, anchor, mean, state)
        anchor = after if overlap_mix is None else outer.mixed(anchor, after, overlap_mix)
    return anchor


def test_one_inner_step_of_sgd_and_an_outer_rate_of_one_is_synchronous_training():
    problem, plain = Regression(), np.zeros(4)
    for _ in range(20):
        plain = plain - 0.1 * problem.gradient(plain, slice(0, 24))
    found = train(problem, outer.Outer("sgd", rate=1.0), steps=1, rounds=20)
    assert np.abs(found - plain).max() < 1e-6
    assert np.abs(train(problem, outer.Outer("sgd", rate=1.0), steps=2, rounds=10) - plain).max() > 1e-4


def test_one_fragment_without_overlap_and_with_mixing_of_one_is_diloco():
    problem, rule = Regression(), outer.Outer()
    shapes = {"w": (4,)}
    (only,) = fragments.fragments_of(shapes, 1)
    assert (train(problem, rule, 5, 8) == train(problem, rule, 5, 8, overlap_mix=1)).all()
    assert (only.join(only.cut(vector(4))) == vector(4)).all()
    assert (train(problem, rule, 5, 8) != train(problem, rule, 5, 8, overlap_mix=0.5)).any()


def test_outer_optimizers_follow_their_formulas():
    anchor, delta = np.float32([1, 2]), np.float32([0.5, -1])
    one, state = outer.outer_step(outer.Outer("nesterov", 0.7, 0.9), anchor, delta, {})
    np.testing.assert_allclose(one, anchor - 0.7 * (delta + 0.9 * delta), rtol=1e-6)
    two, _ = outer.outer_step(outer.Outer("nesterov", 0.7, 0.9), one, delta, state)
    np.testing.assert_allclose(two, one - 0.7 * (delta + 0.9 * (0.9 * delta + delta)), rtol=1e-6)
    plain, _ = outer.outer_step(outer.Outer("nesterov", 0.7, 0.0), anchor, delta, {})
    sgd, empty = outer.outer_step(outer.Outer("sgd", 0.7), anchor, delta, {})
    assert (plain == sgd).all()
    assert empty == {}
    adam, state = outer.outer_step(outer.Outer("adam", 0.1), anchor, delta, {})
    np.testing.assert_allclose(adam, anchor - 0.1 * np.sign(delta), rtol=1e-5)
    _, state = outer.outer_step(outer.Outer("adam", 0.1), adam, delta, state)
    assert state["count"].tolist() == [2]


def test_what_is_averaged_becomes_the_mean_whatever_the_outer_optimizer_is():
    members = [rounds.Member(name, samples, 1.0, "", 0) for name, samples in (("east", 3.0), ("west", 1.0))]
    anchor, updates, state = vector(10), [vector(10, seed) for seed in (1, 2)], {}
    mean = 0.75 * (anchor - updates[0]) + 0.25 * (anchor - updates[1])
    for rule in (outer.Outer(), outer.Outer("adam"), outer.Outer("sgd", rate=0.5)):
        state = {}
        for _ in range(2):  # momentum of the round before counts for nothing
            plain, after = rounds.merge(rule, anchor, state, updates, members)
            found, state = rounds.merge(rule, anchor, state, updates, members, [(2, 4), (9, 10)])
            np.testing.assert_allclose(found[[2, 3, 9]], mean[[2, 3, 9]], atol=1e-6)
            rest = [0, 1, *range(4, 9)]
            assert (found[rest] == plain[rest]).all()
            assert all((state[name] == after[name]).all() for name in after)
    words = masks.total(
        [masks.to_fixed(np.float32(m.samples / 3.0) * one, 2) for m, one in zip(members, updates, strict=True)]
    )
    found, _ = rounds.merge_sum(outer.Outer(), anchor, {}, words, members, 3.0, [(0, 10)])
    np.testing.assert_allclose(found, mean, atol=1e-5)


def test_terms_with_averaged_values_outside_of_their_fragment_are_refused():
    values = {
        "sizes": [4, 2], "outer": asdict(outer.Outer()), "clip": 0.0, "overhead": 0.1, "cap": 10, "k": 4, "chunk": 16,
        "averaged": [[[0, 1], [3, 4]], []],
    }  # fmt: skip
    assert rounds.Terms(values).checked().averaged(0) == [(0, 1), (3, 4)]
    for wrong in ([[[0, 5]], []], [[[3, 1]], []], [[[-1, 1]], []], [[]], [[[0]], []], 7):
        with pytest.raises((ValueError, TypeError, LookupError)):
            rounds.Terms({**values, "averaged": wrong}).checked()


def test_fragments_have_every_parameter_once_and_about_equal_sizes():
    shapes = {f"layer.{i}.w": (8, 1 + i % 3) for i in range(11)} | {"norm": (3,)}
    found = fragments.fragments_of(shapes, 4)
    names = [name for fragment in found for name in fragment.names]
    assert sorted(names) == sorted(shapes)
    sizes = [fragment.size for fragment in found]
    assert max(sizes) - min(sizes) <= 24, sizes
    values = {name: vector(int(np.prod(shape)), i).reshape(shape) for i, (name, shape) in enumerate(shapes.items())}
    for fragment in found:
        again = fragment.cut(fragment.join(values))
        assert all((again[name] == values[name]).all() for name in fragment.names)
    with pytest.raises(ValueError, match="13 fragments"):
        fragments.fragments_of(shapes, 13)
    assert fragments.selected(["a.lora_a", "a.w", "b.lora_b"], ["*.lora_?"]) == ["a.lora_a", "b.lora_b"]
    assert fragments.digest_of(shapes) == fragments.digest_of(dict(reversed(shapes.items())))
    assert fragments.digest_of(shapes) != fragments.digest_of(shapes | {"norm": (4,)})


@pytest.mark.parametrize("size", [1, 4096, 10_000])
def test_all_values_without_rounding_leave_no_error(size):
    rule = sparse.Sparse(k=4096, rounding=False, decay=1.0)
    delta, error = vector(size), np.zeros(size, np.float32)
    for _ in range(3):
        data, sent, error = sparse.with_feedback(delta, error, rule)
        assert (sent == delta).all()
        assert not error.any()
        assert len(data) == rule.num_bytes(size)


def test_sparse_updates_have_the_largest_values_and_the_rest_comes_later():
    rule = sparse.Sparse(k=8, chunk=64, decay=1.0)
    delta, error = vector(256, scale=0.1), np.zeros(256, np.float32)
    _, sent, left = sparse.with_feedback(delta, error, rule)
    for row, chosen in zip(np.abs(delta).reshape(4, 64), sent.reshape(4, 64) != 0, strict=True):
        assert chosen.sum() == 8
        assert row[chosen].min() >= row[~chosen].max()
    np.testing.assert_allclose(sent + left, delta, rtol=1e-6, atol=1e-8)
    assert (np.sign(sent[sent != 0]) == np.sign(delta[sent != 0])).all()
    assert len({*np.abs(sent[:64][sent[:64] != 0]).tolist()}) <= 2
    total, error = np.zeros(256, np.float32), np.zeros(256, np.float32)
    for _ in range(200):
        _, sent, error = sparse.with_feedback(delta, error, rule)
        total += sent
    assert np.abs(total / 200 - delta).max() < 0.1 * np.abs(delta).max()


def test_sparse_updates_have_a_hundred_and_forty_times_fewer_bits():
    rule = sparse.Sparse()
    assert rule.index_bits == 12
    assert rule.bits_per_parameter(4096 * 1000) == (64 * 14 + 32) / 4096
    assert 32 / rule.bits_per_parameter(1 << 20) > 140


def test_sparse_data_of_another_length_or_with_wild_indices_is_refused():
    rule = sparse.Sparse(k=4, chunk=48)
    data = sparse.compress(vector(100), rule)
    assert len(sparse.expand(data, 100, rule)) == 100
    with pytest.raises(ValueError, match="bytes instead of"):
        sparse.expand(data + b"x", 100, rule)
    with pytest.raises(ValueError, match="in a chunk of 48"):
        sparse.expand(b"\xff" * len(data), 100, rule)


HEADER = payload.Header("m" * 8, 3, "here", 100, "float32", samples=5.0, norm=2.0, report={"loss": 1.5})


def test_an_update_survives_the_journey_and_no_changed_byte_does():
    values = vector(100)
    data = payload.pack(HEADER, payload.dense_body(values, "float32"))
    header, body = payload.unpack(data)
    assert header == HEADER
    assert (payload.vector_of(header, body) == values).all()
    for place in range(0, len(data), 7):
        broken = bytearray(data)
        broken[place] ^= 1
        with pytest.raises(payload.PayloadRefused) as refused:
            payload.unpack(bytes(broken))
        assert refused.value.kind == "damaged"
    with pytest.raises(payload.PayloadRefused):
        payload.unpack(data[:20])
    assert len(data) <= payload.max_bytes(100, None)


@pytest.mark.parametrize(
    "wrong", [{"samples": -1.0}, {"size": -4}, {"form": "pickle"}, {"round": "3"}, {"samples": float("nan")}]
)
def test_a_header_with_impossible_fields_is_refused_even_with_a_right_checksum(wrong):
    from dataclasses import asdict

    text = json.dumps(asdict(HEADER) | wrong).encode()
    front = payload.MAGIC + len(text).to_bytes(4, "little") + text + bytes(400)
    with pytest.raises(payload.PayloadRefused) as refused:
        payload.unpack(front + hashlib.sha256(front).digest())
    assert refused.value.kind == "damaged"


def test_values_that_are_no_numbers_are_refused():
    body = payload.dense_body(np.float32([np.nan, 1]), "float32")
    with pytest.raises(payload.PayloadRefused, match="NaN"):
        payload.vector_of(payload.Header("m", 0, "a", 2, "float32"), body)


def test_bfloat16_rounds_to_nearest_even():
    import ml_dtypes

    values = vector(5000, 3, 10.0)
    expected = values.astype(ml_dtypes.bfloat16)
    assert (payload.to_bfloat16(values) == expected.view(np.uint16)).all()
    assert (payload.from_bfloat16(payload.to_bfloat16(values)) == expected.astype(np.float32)).all()


def test_masks_cancel_to_the_bit_and_hide_each_update():
    names = ["east", "north", "west"]
    secrets = {frozenset((a, b)): f"{a}{b}".encode() for a in names for b in names if a < b}
    plain = [masks.to_fixed(vector(1000, i), 3) for i in range(3)]
    masked = [
        masks.mask(words, own, {o: secrets[frozenset((own, o))] for o in names if o != own}, (7, 0))
        for own, words in zip(names, plain, strict=True)
    ]
    assert (masks.total(masked) == masks.total(plain)).all()
    for one, words in zip(masked, plain, strict=True):
        assert (one != words).mean() > 0.99
    exact = sum(vector(1000, i).astype(np.float64) for i in range(3))
    found = masks.from_fixed(masks.total(masked))
    np.testing.assert_allclose(found, exact, rtol=2**-24, atol=3 / (1 << masks.FRACTION))  # float32, and fixed point
    assert (masks.stream(b"s", (7, 0), 9) != masks.stream(b"s", (7, 1), 9)).any()
    with pytest.raises(ValueError, match="beyond what 3 sites"):
        masks.to_fixed(np.float32([700]), 3)


def test_an_update_far_longer_than_the_median_is_shortened_to_the_limit():
    assert rules.clip_factors([1.0, 2.0, 30.0], 3.0) == [1.0, 1.0, 0.2]
    assert rules.clip_factors([1.0, 2.0, 30.0], 0) == [1.0, 1.0, 1.0]
    mean = rules.weighted_mean([np.float32([1]), np.float32([30])], [3, 1], [1.0, 0.1])
    np.testing.assert_allclose(mean, [1.5], rtol=1e-6)


def test_the_time_model_gives_the_known_utilizations_of_a_billion_parameters():
    gigabit = rules.Link(up=1e9 / 8, down=1e9 / 8, delay=0.0)
    whole = gigabit.seconds(4e9, 4e9)
    assert whole == 64
    used = [rules.utilization(steps, 1.0, whole) for steps in (1, 100, 500)]
    assert [round(100 * share, 1) for share in used] == [1.5, 61.0, 88.7]
    assert round(100 * rules.utilization(500, 1.0, gigabit.seconds(1e9, 1e9)), 1) == 96.9
    assert rules.fewest_steps(1.0, 64.0, 0.1) == 576
    assert rules.utilization(576, 1.0, 64.0) >= 0.9 > rules.utilization(575, 1.0, 64.0)


def test_the_adaptive_rule_follows_the_link_and_the_loss():
    forms = [("float32", 0, 4e6), ("bfloat16", 0, 2e6), ("sparse", 64, 3e4)]
    given = {"step_seconds": 0.1, "overhead": 0.1, "cap": 100, "loss": 4.0, "first_loss": 4.0}
    fast = rules.choose(forms, link=rules.Link(1e8, 1e8, 0.01), **given)
    middle = rules.choose(forms, link=rules.Link(5e6, 5e6, 0.01), **given)
    slow = rules.choose(forms, link=rules.Link(1e5, 1e5, 0.01), **given)
    assert (fast.form, fast.interval) == ("float32", 10)  # as the loss allows: sqrt(100)
    assert middle.form == "bfloat16"
    assert (slow.form, slow.k) == ("sparse", 64)
    assert 10 < slow.interval <= 100
    assert "allows 10" in fast.reason
    later = rules.choose(forms, link=rules.Link(1e8, 1e8, 0.01), **given | {"loss": 1.0})
    assert later.interval == 9  # what the link needs; the loss alone would allow 5
    hopeless = rules.choose(forms, link=rules.Link(10.0, 10.0, 0.01), **given)
    assert (hopeless.form, hopeless.interval) == ("sparse", 100)
    assert rules.loss_steps(16, 1.0, 4.0) == 2
    assert rules.balanced(10, {"a": 0.1, "b": 0.3}) == {"a": 30, "b": 10}
