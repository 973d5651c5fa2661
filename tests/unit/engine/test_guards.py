"""Nothing that is not finite passes, and no foreign token id."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from hypothesis import given
from hypothesis import strategies as st

from erniecore.data.dataset import DatasetBuilder
from erniecore.engine.training.guards import StepGuard, check_dataset, check_token_ids, clip_scale
from erniecore.errors import ConfigError, DataError, Exit, NumericsError
from erniecore.types.records import Origin
from erniecore.types.samples import IGNORE, Batch, Sample

NAN = float("nan")


def batch(ids, labels=None):
    ids = np.array([ids], dtype=np.int64)
    labels = ids if labels is None else np.array([labels], dtype=np.int64)
    ends = np.full((1, 1, ids.shape[1], 1), ids.shape[1], np.int32)
    return Batch(ids, labels, ids * 0, ends, {}, ids.size, 1, (Origin("a.jsonl", 17),))


def test_finite_step_passes_without_a_word():
    assert StepGuard(2).judge(1, 2.0, 1.0, [batch([1])], []) is None


@pytest.mark.parametrize(("loss", "norm"), [(NAN, 1.0), (float("inf"), 1.0), (1.0, NAN), (1.0, float("inf"))])
def test_step_that_is_not_finite_is_skipped_and_names_its_samples(loss, norm):
    bad = StepGuard(2).judge(3, loss, norm, [batch([1])], [("w", paddle.to_tensor([1.0, NAN]))])
    assert bad.where in ("loss", "w")
    assert bad.skipped == 1
    assert bad.samples == ("a.jsonl:17",)


def test_stops_after_too_many_in_a_row_and_says_where():
    guard = StepGuard(2)
    gradients = [("fine", paddle.ones([2])), ("broken", paddle.to_tensor([1.0, NAN]))]
    assert guard.judge(1, 1.0, NAN, [batch([1])], gradients).where == "broken"
    assert guard.judge(2, 1.0, NAN, [batch([1])], gradients).skipped == 2
    with pytest.raises(NumericsError) as caught:
        guard.judge(3, 1.0, NAN, [batch([1])], gradients)
    assert caught.value.where == "broken"
    assert "a.jsonl:17" in caught.value.found
    assert caught.value.exit_code == Exit.NUMERICS


def test_finite_step_in_between_resets_the_count():
    guard = StepGuard(1)
    for step in range(10):
        guard.judge(step, 1.0, NAN if step % 2 else 1.0, [batch([1])], [])
    assert guard.skips == 1


def test_a_spike_is_skipped_once_the_usual_norm_is_known():
    guard = StepGuard(2, spike_factor=10.0)
    assert guard.judge(1, 2.0, 500.0, [batch([1])], []) is None  # a run begins with large gradients
    for step in range(2, 66):
        assert guard.judge(step, 2.0, 1.0 + step / 100, [batch([1])], []) is None
    assert "more than 10 times the usual" in guard.judge(66, 2.0, 50.0, [batch([1])], []).found
    assert guard.first_bad == 66
    assert guard.judge(67, 2.0, 9.0, [batch([1])], []) is None
    assert guard.first_bad == 0


def test_state_of_the_guard_comes_back():
    guard, other = StepGuard(2), StepGuard(2)
    guard.judge(1, 2.0, 1.5, [batch([1])], [])
    guard.judge(2, 2.0, NAN, [batch([1])], [])
    other.load_state(guard.state())
    assert (other.skips, other.first_bad, list(other.norms)) == (1, 2, [1.5])


def test_no_skips_allowed_stops_at_once():
    with pytest.raises(NumericsError):
        StepGuard(0).judge(1, NAN, 1.0, [batch([1])], [])


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
    builder = DatasetBuilder(("a.jsonl",))
    for line, label in enumerate(labels, 1):
        ids = np.array([1, 2, 3])
        ends = np.full(3, 3, np.int32)
        builder.add(
            Sample(ids, np.array([IGNORE, 4, label]), np.arange(3), ends, origin=Origin("a.jsonl", line)), line, 0
        )
    return builder.finish()


def test_whole_store_is_checked_at_once():
    check_dataset(store(5, 6, 9), 10)


@pytest.mark.parametrize(("labels", "line"), [((10, 1), 1), ((1, 10), 2), ((1, 2, -3), 3)])
def test_foreign_id_in_a_store_is_named_by_its_line(labels, line):
    with pytest.raises(DataError) as caught:
        check_dataset(store(*labels), 10)
    assert caught.value.where == f"a.jsonl:{line}"


def test_a_processor_has_no_other_memory(maker):
    with pytest.raises(ConfigError, match=r"optimizer\.offload.*its memory is the host's"):
        maker.run(optimizer={"offload": True})
