"""Packed rows of the dense model equal their parts, in logits and gradients."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ernie45.context import end_rows_of_restarts
from erniecore_ernie45.plugin import plugin

pytestmark = pytest.mark.usefixtures("each_kernel")

LENGTHS = (5, 1, 7, 3)


@pytest.fixture
def model(build, reference):
    config = reference.config()
    return build(plugin, config, reference.random_weights(config))


def row(reference, padding=0):
    """ids, positions and end rows of a packed row; padding columns end at their own row."""
    ids = np.random.default_rng(4).integers(0, reference.config()["vocab_size"], (1, sum(LENGTHS) + padding))
    positions = np.concatenate([np.arange(n) for n in (*LENGTHS, padding)])[None]
    ends = np.concatenate([np.repeat(np.cumsum(LENGTHS), LENGTHS), np.arange(sum(LENGTHS), sum(LENGTHS) + padding)])
    return ids, positions, ends.astype(np.int32).reshape(1, 1, -1, 1)


def tensors(**arrays):
    return {name: paddle.to_tensor(value) for name, value in arrays.items()}


def separate(model, ids):
    ends = np.cumsum(LENGTHS)
    parts = [ids[:, end - n : end] for n, end in zip(LENGTHS, ends, strict=True)]
    return paddle.concat([model(paddle.to_tensor(part)) for part in parts], axis=1)


def gradients(model, logits):
    weights = paddle.to_tensor(np.random.default_rng(5).standard_normal(logits.shape).astype(np.float32))
    (logits * weights).sum().backward()
    found = {name: parameter.grad.numpy().copy() for name, parameter in model.named_parameters()}
    model.clear_gradients()
    return found


@pytest.mark.parametrize("given", ["end rows", "restarting positions"])
def test_packed_equals_separate(given, model, reference):
    ids, positions, ends = row(reference)
    masks = {"startend_row_indices": ends} if given == "end rows" else {}
    packed = model(**tensors(input_ids=ids, position_ids=positions, **masks))
    alone = separate(model, ids)
    np.testing.assert_allclose(packed.numpy(), alone.numpy(), atol=1e-5, rtol=1e-5)
    expected = gradients(model, alone)
    for name, found in gradients(model, packed).items():
        np.testing.assert_allclose(found, expected[name], atol=1e-4, rtol=1e-4, err_msg=name)


def test_padding_at_the_end_of_a_packed_row_changes_nothing(model, reference):
    ids, positions, ends = row(reference, padding=4)
    found = model(**tensors(input_ids=ids, position_ids=positions, startend_row_indices=ends)).numpy()
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[:, : sum(LENGTHS)], separate(model, ids).numpy(), atol=1e-5, rtol=1e-5)


def test_positions_that_only_rise_are_one_sequence(model, reference):
    ids = np.arange(6).reshape(1, 6)
    strided = model(**tensors(input_ids=ids, position_ids=np.arange(3, 21, 3).reshape(1, 6))).numpy()
    expected = reference.logits(reference.config(), reference.random_weights(reference.config()), ids, ids * 3 + 3)
    np.testing.assert_allclose(strided, expected, atol=2e-5, rtol=2e-5)


def test_end_rows_follow_restarts():
    positions = paddle.to_tensor([[0, 1, 2, 0, 0, 1], [0, 1, 2, 3, 4, 5]])
    found = end_rows_of_restarts(positions).numpy()[:, 0, :, 0]
    np.testing.assert_array_equal(found, [[3, 3, 3, 4, 6, 6], [6, 6, 6, 6, 6, 6]])


def test_end_rows_with_a_filled_cache_are_refused(model, cache):
    model.eval()
    model(paddle.to_tensor([[1, 2]]), cache=cache)
    with pytest.raises(ValueError, match="filled cache"):
        model(paddle.to_tensor([[3]]), cache=cache, startend_row_indices=paddle.ones([1, 1, 1, 1], "int32"))
