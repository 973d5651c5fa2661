"""What the processes of test_plugin_device.py do on an accelerator of `hostcard`."""

import numpy as np


def facts(cluster):
    """What one process sees of its accelerator."""
    import paddle

    from erniecore import registry

    plugin = registry.load("device", "hostcard")
    device = plugin.ernie_open_device(config=plugin.Config(), cluster=cluster)
    before = device.peak_memory()
    block = paddle.zeros([1 << 20], "float32")
    stream = paddle.device.Stream()
    with paddle.device.stream_guard(stream):
        doubled = block + 1.0
    stream.synchronize()
    event = stream.record_event()
    event.synchronize()
    found = {
        "place": str(block.place),
        "sum": float(doubled.sum()),
        "event": event.query(),
        "grown": device.peak_memory() - before,
        "describe": dict(device.describe()),
    }
    try:
        paddle.zeros([1 << 25], "float32")
    except (RuntimeError, MemoryError, OSError) as error:
        found["full"] = [str(error)]
    return found


def collectives(cluster):
    """Paddle's own collectives on a plug-in device against numpy: what differs, and which backend it was."""
    import paddle
    import paddle.distributed as dist
    from erniecore_hybrid_parallel.groups import World

    world = World(cluster, 60.0)
    comm, rank, size = world.comm([list(range(cluster.world_size))]), cluster.rank, cluster.world_size
    wrong = []

    def check(name, found, expected):
        if "hostcard" not in str(found.place) or not np.allclose(found.astype("float64").numpy(), expected, rtol=1e-2):
            wrong.append(name)

    for dtype in ("float32", "bfloat16", "int64"):
        rows = [np.arange(6.0 * size).reshape(2 * size, 3) + r for r in range(size)]
        mine = paddle.to_tensor(rows[rank]).astype(dtype)
        check(f"{dtype} all_reduce", comm.all_reduce(mine.clone()), sum(rows))
        check(f"{dtype} all_max", comm.all_max(mine.clone()), np.max(rows, axis=0))
        check(f"{dtype} all_gather", comm.all_gather(mine), np.concatenate(rows))
        check(f"{dtype} reduce_scatter", comm.reduce_scatter(mine.clone()), np.split(sum(rows), size)[rank])
        check(f"{dtype} broadcast", comm.broadcast(mine.clone(), size - 1), rows[-1])
        sent = [r + 1 for r in range(size)]  # uneven: as many rows as the receiver's number
        parts = [paddle.full([sum(sent), 2], float(rank)).astype(dtype)]
        found = comm.all_to_all(parts[0], np.tile(sent, (size, 1)))
        check(f"{dtype} all_to_all", found, np.repeat(np.arange(size), rank + 1)[:, None] * np.ones(2))
    large = paddle.full([3 << 18], float(rank + 1))  # more than a slot holds
    check("large all_reduce", comm.all_reduce(large), size * (size + 1) / 2)
    token = paddle.full([70000], float(rank))  # more than a letter holds
    if rank == 0:
        dist.send(token, dst=1)
    elif rank == 1:
        dist.recv(token, src=0)
        check("send and receive", token, 0.0)
    return [world.backend, wrong]


def everything(cluster, cases):
    """One launch: what an accelerator is, its collectives, and a run for each case."""
    import erniecore

    found = {"facts": facts(cluster), "collectives": collectives(cluster)}
    for words in cases:
        erniecore.run(overrides=words, console="none")
    return found
