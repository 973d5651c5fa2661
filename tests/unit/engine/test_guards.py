"""Nothing that is not finite passes, and no foreign token id."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from hypothesis import given
from hypothesis import strategies as st

from erniecore.data.store import StoreBuilder
from erniecore.engine.training.guards import StepGuard, check_store, check_token_ids, clip_scale
from erniecore.errors import DataError, Exit, NumericsError
from erniecore.types import IGNORE, Batch, Origin, Sample

NAN = float("nan")


def batch(ids, labels=None):
    ids = np.array([ids], dtype=np.int64)
    labels = ids if labels is None else np.array([labels], dtype=np.int64)
    ends = np.full((1, 1, ids.shape[1], 1), ids.shape[1], np.int32)
    return Batch(ids, labels, ids * 0, ends, {}, ids.size, 1, (Origin("a.jsonl", 17),))


def guard(max_skips=2):
    seen = []
    return StepGuard(max_skips, lambda kind, **fields: seen.append({"kind": kind, **fields})), seen


def test_finite_step_passes_without_a_word():
    made, seen = guard()
    assert made.allows(1, 2.0, 1.0, [batch([1])], [])
    assert seen == []


@pytest.mark.parametrize(("loss", "norm"), [(NAN, 1.0), (float("inf"), 1.0), (1.0, NAN), (1.0, float("inf"))])
def test_step_that_is_not_finite_is_skipped_and_names_its_samples(loss, norm):
    made, seen = guard()
    assert not made.allows(3, loss, norm, [batch([1])], [("w", paddle.to_tensor([1.0, NAN]))])
    assert seen[0]["kind"] == "numerics"
    assert seen[0]["step"] == 3
    assert seen[0]["samples"] == ["a.jsonl:17"]


def test_stops_after_too_many_in_a_row_and_says_where():
    made, _ = guard(max_skips=2)
    gradients = [("fine", paddle.ones([2])), ("broken", paddle.to_tensor([1.0, NAN]))]
    assert not made.allows(1, 1.0, NAN, [batch([1])], gradients)
    assert not made.allows(2, 1.0, NAN, [batch([1])], gradients)
    with pytest.raises(NumericsError) as caught:
        made.allows(3, 1.0, NAN, [batch([1])], gradients)
    assert caught.value.where == "broken"
    assert "a.jsonl:17" in caught.value.found
    assert caught.value.exit_code == Exit.NUMERICS


def test_finite_step_in_between_resets_the_count():
    made, _ = guard(max_skips=1)
    for step in range(10):
        made.allows(step, 1.0, NAN if step % 2 else 1.0, [batch([1])], [])
    assert made.skips == 1


def test_a_spike_is_skipped_once_the_usual_norm_is_known():
    made, seen = guard()
    made.spike_factor = 10.0
    assert made.allows(1, 2.0, 500.0, [batch([1])], [])  # a run begins with large gradients
    for step in range(2, 66):
        assert made.allows(step, 2.0, 1.0 + step / 100, [batch([1])], [])
    assert not made.allows(66, 2.0, 50.0, [batch([1])], [])
    assert "more than 10 times the usual" in seen[0]["found"]
    assert made.first_bad == 66
    assert made.allows(67, 2.0, 9.0, [batch([1])], [])
    assert made.first_bad == 0


def test_state_of_the_guard_comes_back():
    made, _ = guard()
    made.allows(1, 2.0, 1.5, [batch([1])], [])
    made.allows(2, 2.0, NAN, [batch([1])], [])
    other, _ = guard()
    other.load_state(made.state())
    assert (other.skips, other.first_bad, list(other.norms)) == (1, 2, [1.5])


def test_no_skips_allowed_stops_at_once():
    made, _ = guard(max_skips=0)
    with pytest.raises(NumericsError):
        made.allows(1, NAN, 1.0, [batch([1])], [])


@given(st.floats(1e-6, 1e6), st.floats(1e-3, 1e3))
def test_clipped_norm_is_never_above_the_maximum(norm, maximum):
    scale = clip_scale(norm, maximum)
    assert scale <= 1
    assert norm * scale <= maximum * (1 + 1e-12)


def test_zero_turns_clipping_off():
    assert clip_scale(1e9, 0.0) == 1.0


def test_known_ids_pass():
    check_token_ids(batch([0, 9], [IGNORE, 9]), 10)


@pytest.mark.parametrize(
    ("ids", "labels", "found"), [([10], None, "10"), ([-1], [0], "-1"), ([0], [10], "10"), ([0], [-5], "-5")]
)
def test_foreign_ids_are_refused_with_their_origin(ids, labels, found):
    with pytest.raises(DataError) as caught:
        check_token_ids(batch(ids, labels), 10)
    assert caught.value.where == "a.jsonl:17"
    assert caught.value.found == found


def store(*labels):
    builder = StoreBuilder(("a.jsonl",))
    for line, label in enumerate(labels, 1):
        ids = np.array([1, 2, 3])
        ends = np.full(3, 3, np.int32)
        builder.add(
            Sample(ids, np.array([IGNORE, 4, label]), np.arange(3), ends, origin=Origin("a.jsonl", line)), line, 0
        )
    return builder.finish()


def test_whole_store_is_checked_at_once():
    check_store(store(5, 6, 9), 10)


@pytest.mark.parametrize(("labels", "line"), [((10, 1), 1), ((1, 10), 2), ((1, 2, -3), 3)])
def test_foreign_id_in_a_store_is_named_by_its_line(labels, line):
    with pytest.raises(DataError) as caught:
        check_store(store(*labels), 10)
    assert caught.value.where == f"a.jsonl:{line}"
