"""How long the whole of a sharded head is kept: for all uses of a pass, and no longer than until gradients enter a layer."""

from types import SimpleNamespace

import pytest


@pytest.fixture
def shards():
    from erniecore_hybrid_parallel.parameters import ParameterShards

    return ParameterShards()


@pytest.fixture
def head(shards):
    """Asks for the head of a pass; how often it was gathered."""
    import paddle

    member, gathers = SimpleNamespace(parameter=paddle.zeros([2])), []

    def gather():
        gathers.append(paddle.ones([4]))
        return gathers[-1]

    def ask():
        shards.head_of(member, gather)
        return len(gathers)

    return ask


def layer():
    return SimpleNamespace(shared_members=[])


def test_uses_of_one_pass_have_the_same_head(shards, head):
    last = layer()
    shards.enter(last)
    assert [head(), head()] == [1, 1]
    shards.enter(last)  # computed once more, forward
    assert head() == 1


def test_it_is_let_go_when_gradients_enter_the_layer_before_it(shards, head):
    last = layer()
    shards.enter(last)
    head()
    shards.enter(last, backward=True)
    assert head() == 2


def test_it_is_let_go_when_another_layer_is_entered(shards, head):
    shards.enter(layer())
    head()
    shards.enter(layer())
    assert head() == 2
