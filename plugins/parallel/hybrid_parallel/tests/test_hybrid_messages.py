"""How sharded parameters travel: small ones together, large ones alone and in the memory of their message."""

from types import SimpleNamespace

import numpy as np


class Twice:
    """A group of two ranks with the same values; keeps what it gave."""

    ranks, size = (0, 1), 2

    def __init__(self):
        self.given = []

    def all_gather(self, flat):
        import paddle

        self.given.append(paddle.concat([flat, flat]))
        return self.given[-1]


def member(name, shape, group):
    """This rank's half: 0, 1, 2, …"""
    import paddle
    from erniecore_hybrid_parallel.parameters import Member

    half = paddle.arange(-(-int(np.prod(shape)) // 2), dtype="float32")
    return Member(name, half, SimpleNamespace(sharding=group, flat_of=shape))


def test_large_members_have_a_message_and_its_memory_and_small_ones_share_one():
    from erniecore_hybrid_parallel.parameters import LARGE, gathered, messages

    group = Twice()
    members = [member("a", (2, 3), group), member("large", (LARGE // 8, 8), group), member("b", (5,), group)]
    assert [[one.name for one in same] for same, _ in messages(members)] == [["a", "b"], ["large"]]
    found = {one.name: whole for one, whole in gathered(members)}
    assert found["a"].tolist() == [[0, 1, 2], [0, 1, 2]]
    assert found["b"].tolist() == [0, 1, 2, 0, 1]  # without what was added to the last rank's range
    assert found["large"].shape == [LARGE // 8, 8]
    assert found["large"].data_ptr() == group.given[1].data_ptr()
    assert found["a"].data_ptr() != group.given[0].data_ptr()
