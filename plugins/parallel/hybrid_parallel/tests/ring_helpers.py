"""What the processes of the tests of ring attention do: attention alone, without a model around it."""

import gc

import numpy as np


def _shards(cluster):
    """(ring, gathering) shards of one context of all ranks."""
    from erniecore_hybrid_parallel.comm import Comm
    from erniecore_hybrid_parallel.config import HybridConfig
    from erniecore_hybrid_parallel.groups import World
    from erniecore_hybrid_parallel.planning import make_mesh
    from erniecore_hybrid_parallel.positions import ContextShard
    from erniecore_hybrid_parallel.ring import open_ring
    from erniecore_hybrid_parallel.tensor import Shard

    world = World(cluster, 60.0)
    mesh = make_mesh(HybridConfig(context=cluster.world_size), cluster.world_size)
    context, ring = world.comm(mesh.groups("context")), open_ring(mesh, world)
    alone = Shard(Comm([cluster.rank], cluster.rank, None, world.backend))
    return ContextShard(context, alone, ring), ContextShard(context, alone)


def attended(cluster, cases):
    """For each case [B, S, hq, hk, d, masks]: the largest differences of result and gradients at the positions here, in float64,
    from attention of whole rows; and the same in float32 of gathered keys and of the ring."""
    import paddle

    from erniecore.api import ops

    ring, gathering = _shards(cluster)
    found = []
    for B, S, hq, hk, d, masks in cases:
        rng, mine = np.random.default_rng(S), ring.mine(S)
        arrays = [rng.standard_normal(s) for s in ((B, S, hq, d), (B, S, hk, d), (B, S, hk, d), (B, S, hq, d))]
        ends = np.full((B, S), S, np.int32)
        if masks:  # three documents per row, and padding
            for row in ends:
                cuts = np.sort(rng.integers(1, S, 3))
                for start, stop in zip((0, *cuts[:-1]), cuts, strict=True):
                    row[start:stop] = stop
                row[cuts[-1] :] = np.arange(cuts[-1], S)

        def computed(attend, places, dtype, arrays=arrays):
            q, k, v, dy = (paddle.to_tensor(x[:, places], dtype=dtype, stop_gradient=False) for x in arrays)
            y = attend(q, k, v)
            (y * dy.detach()).sum().backward()
            return [x.numpy() for x in (y, q.grad, k.grad, v.grad)]

        def apart(shard, dtype, wanted, ends=ends, computed=computed, mine=mine):
            one = computed(lambda q, k, v: shard.attention(ends).attention(q, k, v, scale=None), mine, dtype)
            return max(float(np.abs(a - b).max()) for a, b in zip(one, wanted, strict=True))

        indices = paddle.to_tensor(ends.reshape(B, 1, S, 1))
        whole = computed(lambda *x, i=indices: ops.attention(*x, startend_row_indices=i), np.arange(S), "float64")
        wanted = [x[:, mine] for x in whole]
        found.append(
            [apart(ring, "float64", wanted), *(apart(shard, "float32", wanted) for shard in (ring, gathering))]
        )
    return found


def memory(cluster, lengths):
    """For each number of positions per rank, for the ring and for gathered keys: bytes that a forward pass keeps for the backward
    pass, without its result, and the most that both take beside what was there, in units of the keys and values of a rank."""
    import paddle
    from paddle.base import core

    shards = _shards(cluster)
    return [[_measured(paddle, core, shard, n, cluster.world_size) for shard in shards] for n in lengths]


def _measured(paddle, core, shard, length, size):
    rng = np.random.default_rng(0)
    shapes = ((1, length, 4, 64), (1, length, 2, 64), (1, length, 2, 64))
    q, k, v = (paddle.to_tensor(rng.standard_normal(s), dtype="float32", stop_gradient=False) for s in shapes)
    ends, unit = np.full((1, size * length), size * length, np.int32), 2 * k.size * 4
    for _ in range(2):  # what is made once is made
        for x in (q, k, v):
            x.clear_gradient()
        gc.collect()
        before = core.host_memory_stat_current_value("Allocated", 0)
        core.host_memory_stat_reset_peak_value("Allocated", 0)
        y = shard.attention(ends).attention(q, k, v, scale=None)
        gc.collect()
        kept = core.host_memory_stat_current_value("Allocated", 0) - before - y.size * 4
        y.sum().backward()
        peak = core.host_memory_stat_peak_value("Allocated", 0) - before
        del y
    return [kept / unit, peak / unit]
