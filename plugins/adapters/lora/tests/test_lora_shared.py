"""Updates of a matrix that ranks share: lengths of outputs and a fixed start, part by part as of the whole."""

import copy

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_lora.lowrank import LowRank, pissa
from erniecore_lora.sizes import Size

WHOLE, EXPERTS = (6, 8), (4, 6, 8)


class Group:
    """A rank of two. ``total``: what the sum over both is; None: it is noted and left as it is."""

    size = 2

    def __init__(self, index, total=None):
        self.index, self.total, self.given = index, total, []

    def all_reduce(self, tensor):
        self.given.append(tensor.clone())
        return tensor if self.total is None else self.total


def part(tensor, axis, index):
    size = tensor.shape[axis] // 2
    return tensor.slice([axis], [index * size], [(index + 1) * size])


def trained(shape, fixed):
    """A matrix and an update far from zero, with lengths that are not those of the start."""
    paddle.seed(3)
    weight, low = paddle.randn(shape), LowRank(shape, "float32", Size(2, 4, False))
    if fixed:
        pissa(low, weight)
    low.add_magnitude(weight)
    for parameter in (low.A, low.B):
        parameter.set_value(parameter + 0.5 * paddle.randn(parameter.shape))
    low.magnitude.set_value(low.magnitude * (1 + paddle.rand(low.magnitude.shape)))
    return weight, low


def cut(low, axis, group):
    """The update as rank ``group.index`` has it."""
    own = copy.deepcopy(low)
    own.share(axis, group)
    stacked = low.A.ndim == 3
    axes = {"A": 0, "B": 0, "magnitude": 0} if stacked else {"A": 0} if axis == 0 else {"B": 1, "magnitude": 0}
    for name, at in axes.items():
        value = part(getattr(own, name), at, group.index)
        setattr(own, name, own.create_parameter(value.shape))
        getattr(own, name).set_value(value)
    return own


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [(WHOLE, 0), (WHOLE, 1), (EXPERTS, 0)])
def test_parts_have_the_lengths_and_the_update_of_the_whole(shape, axis, fixed):
    weight, low = trained(shape, fixed)
    gain, delta = low.gain(weight).numpy(), low.delta()
    groups = [Group(0), Group(1)]
    parts = [cut(low, axis, group) for group in groups]
    first = [own.gain(part(weight, axis, index)).numpy() for index, own in enumerate(parts)]
    for index, own in enumerate(parts):
        np.testing.assert_allclose(own.delta().numpy(), part(delta, axis, index).numpy(), atol=1e-6)
    if (shape, axis) != (WHOLE, 0):
        np.testing.assert_allclose(np.concatenate(first), gain, rtol=1e-5)
        assert not any(group.given for group in groups), "a rank has all that its outputs depend on"
        return
    assert np.abs(first[0] / gain - 1).max() > 1e-2  # without the other ranks' inputs they are others
    total = sum(group.given[0] for group in groups)
    for index in range(2):
        own = cut(low, axis, Group(index, total))
        np.testing.assert_allclose(own.gain(part(weight, axis, index)).numpy(), gain, rtol=1e-5)


def test_a_whole_update_has_its_whole_start_again():
    """As for writing, where the trained factors are whole too."""
    _, low = trained(WHOLE, fixed=True)
    own = cut(low, 1, Group(1))
    own.B = own.create_parameter(low.B.shape)
    own.B.set_value(low.B)
    np.testing.assert_array_equal(own.delta().numpy(), low.delta().numpy())
