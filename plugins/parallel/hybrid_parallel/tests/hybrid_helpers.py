"""What the processes of these tests do: one launch runs many layouts."""

import numpy as np


def collectives(cluster):
    """Each collective of a whole group and of sub-groups against numpy, and ways against their adjoints: lists of what
    differs."""
    import paddle
    from erniecore_hybrid_parallel.config import HybridConfig
    from erniecore_hybrid_parallel.groups import World
    from erniecore_hybrid_parallel.planning import make_mesh
    from erniecore_hybrid_parallel.process_group import HybridProcessGroup

    world, wrong = World(cluster, 60.0), []
    size, rank = cluster.world_size, cluster.rank
    groups = [[list(range(size))]]
    if size == 4:
        groups += [[[0, 1], [2, 3]], [[0, 2], [1, 3]]]
    for grouping in groups:
        comm = world.comm(grouping)
        members = next(group for group in grouping if rank in group)
        for dtype in ("float32", "float64", "int64"):
            wrong += [f"{grouping} {dtype} {name}" for name in _differing(paddle, comm, members, rank, dtype)]
    ranks = HybridProcessGroup(HybridConfig(), make_mesh(HybridConfig(), size), world)
    for length in (0, 3, 5000):
        texts = ranks.all_gather_object("x" * length * (rank + 1))
        if [len(t) for t in texts] != [length * (r + 1) for r in range(size)]:
            wrong.append(f"exchange of {length}")
    return {"collectives": wrong, "adjoints": _adjoints(ranks.everybody, rank)}


def _differing(paddle, comm, members, rank, dtype):
    """Names of collectives whose result is not numpy's."""
    n, me = len(members), members.index(rank)

    def data(r, *shape):
        return (np.random.default_rng(r).normal(size=shape) * 8).astype(dtype)

    def check(name, found, expected):
        if found.numpy().shape != expected.shape or not np.allclose(found.numpy(), expected, rtol=1e-6, atol=1e-6):
            yield name

    whole = [data(r, 4 * n, 6) for r in members]
    tensor = paddle.to_tensor(whole[me])
    yield from check("all_reduce", comm.all_reduce(tensor.clone()), sum(whole))
    yield from check("all_max", comm.all_max(tensor.clone()), np.max(whole, axis=0))
    for axis in (0, 1):
        yield from check(f"all_gather {axis}", comm.all_gather(tensor, axis), np.concatenate(whole, axis))
        view = paddle.to_tensor(data(rank, 6, 4 * n)).T if axis else tensor
        strided = [data(r, 6, 4 * n).T if axis else w for r, w in zip(members, whole, strict=True)]
        yield from check(f"all_gather view {axis}", comm.all_gather(view), np.concatenate(strided))
    blocks = np.split(sum(whole), n, axis=0)
    yield from check("reduce_scatter 0", comm.reduce_scatter(tensor.clone()), blocks[me])
    wide = [data(r, 3, 2 * n) for r in members]
    columns = np.split(sum(wide), n, axis=1)
    yield from check("reduce_scatter 1", comm.reduce_scatter(paddle.to_tensor(wide[me]), 1), columns[me])
    yield from check("broadcast", comm.broadcast(tensor.clone(), n - 1), whole[n - 1])
    counts = [[(2 * i + 3 * j) % 5 for j in range(n)] for i in range(n)]  # uneven, with zeros
    rows = [data(r, sum(counts[i]), 2) for i, r in enumerate(members)]
    expected = [rows[i][sum(counts[i][:me]) :][: counts[i][me]] for i in range(n)]
    before = comm.sent
    found = comm.all_to_all(paddle.to_tensor(rows[me]), np.array(counts))
    yield from check("all_to_all", found, np.concatenate(expected))
    if comm.sent - before != (len(rows[me]) - counts[me][me]) * rows[me][0].nbytes:
        yield "all_to_all sends rows elsewhere than where they go"


def _adjoints(comm, rank):
    """Names of ways whose gradient is not their adjoint: Σ_ranks <f(x), y> = Σ_ranks <x, f'(y)>, also with nothing to send."""
    import paddle
    from erniecore_hybrid_parallel.experts import combine, dispatch, plan_dispatch
    from erniecore_hybrid_parallel.regions import collect, scatter, total

    wrong, rng = [], np.random.default_rng(rank)

    def check(name, function, *shape):
        x = paddle.to_tensor(rng.normal(size=shape), stop_gradient=False)
        out = function(x)
        y = paddle.to_tensor(rng.normal(size=out.shape))
        (out * y).sum().backward()
        sides = comm.all_reduce(paddle.stack([(out * y).sum(), (x.detach() * x.grad).sum()]).detach()).numpy()
        if abs(sides[0] - sides[1]) > 1e-9:
            wrong.append(f"{name}: {sides}")

    for axis in (0, 1):
        check(f"collect {axis}", lambda x, axis=axis: collect(x, comm, axis), 4, 8, 3)
        check(f"scatter {axis}", lambda x, axis=axis: scatter(x, comm, axis), 4, 8, 3)
    check("total", lambda x: total(x, comm), 4, 3)
    for experts in (rng.integers(-1, 4, (5, 2)), np.full((5, 2), -1), np.full((5, 2), 3 if rank else -1)):
        plan = plan_dispatch(experts, 2, comm)
        check(f"go {experts.tolist()}", lambda x, j=plan: dispatch(x, j), 5, 3)
        check(f"back {experts.tolist()}", lambda x, j=plan: combine(x, j), max(plan.received, 1), 3)
    return wrong


def runs(cluster, cases):
    """``erniecore.run`` for each case, a list of ``section.key=value``; the last metrics of each."""
    import erniecore

    return [dict(erniecore.run(overrides=words, console="none").metrics) for words in cases]


def saved_again(cluster, cases):
    """For each case: restore what ``run.resume`` names, and save it as it is then here; nothing is trained."""
    for words in cases:
        run = _built(words)
        assert run.state.step == run.total_steps
        run.saver.saved = None
        run.saver.save(run.state)


def several(cluster, tasks):
    """One launch for several of these functions: what each gives for its cases."""
    return {name: globals()[name](cluster, cases) for name, cases in tasks.items()}


def codes(cluster, cases):
    """For each case: name -> SHA-256 of what the quantizer stores of each weight, whole, before the first step."""
    import hashlib

    from erniecore.engine.training.full_weights import full_weights

    found = []
    for words in cases:
        run = _built(words)
        kept = {
            name
            for name, tensor in run.state.model.state_dict().items()
            if name not in dict(run.state.model.named_parameters())
        }
        state = full_weights(run.ranks, run.state.model).state_dict()
        arrays = {name: tensor.numpy() for name, tensor in state.items() if name in kept}
        found.append({name: f"{a.shape} {hashlib.sha256(a.tobytes()).hexdigest()}" for name, a in arrays.items()})
    return found


def memory(cluster, cases):
    """For each case: parameters, bytes allocated once the run is built, and more after a backward pass."""
    import gc

    from paddle.base import core

    found = []
    for words in cases:
        before = core.host_memory_stat_current_value("Allocated", 0)
        run = _built(words)
        built = core.host_memory_stat_current_value("Allocated", 0)
        run.state.model.train()
        run.context.host.hook.ernie_forward_backward(run=run.callbacks.view, batches=run.batches(1))
        gc.collect()
        after = core.host_memory_stat_current_value("Allocated", 0)
        found.append((run.context.plan.parameters.total, built - before, after - built))
        del run
        gc.collect()
    return found


def activations(cluster, cases):
    """For each case: positions of a micro-batch, and bytes that its forward pass keeps for the backward pass."""
    import gc

    from paddle.base import core

    found = []
    for words in cases:
        run = _built(words)
        run.state.model.train()
        batch = run.batches(1)[0]
        totals = run.state.objective.normalizers(batch)
        run.state.objective(batch, totals).loss.backward()  # what is made once is made
        gc.collect()
        before = core.host_memory_stat_current_value("Allocated", 0)
        output = run.state.objective(batch, totals)
        gc.collect()
        found.append((batch.input_ids.size, core.host_memory_stat_current_value("Allocated", 0) - before))
        del run, output
        gc.collect()
    return found


def _built(words):
    """A run, ready to train, as ``erniecore.run`` makes it."""
    import os

    from erniecore.config.compose import load
    from erniecore.engine import opening
    from erniecore.engine.preparation import resume
    from erniecore.engine.preparation.prepare import prepare
    from erniecore.engine.stop import StopRequest
    from erniecore.engine.training.build import build

    context = prepare(load(None, words, {}, os.environ), console="none")
    (context.out / "control").mkdir(parents=True, exist_ok=True)
    found, mode, plan = resume.Resumption(), context.settings.run.resume, context.parallel_plan
    if context.is_main:
        found = resume.choose(context.out, mode, context.settings_json, context.rows)
    opening.open_device(context.device, context.cluster, context.kernels)
    ranks = opening.open_process_group(context.host, context.settings.parallel, plan, context.cluster, context.device)
    found = opening.share_choice(ranks, found)
    return build(context, found, ranks, StopRequest(context.out / "control" / "stop"))


def partial_names(cluster, root):
    """Two ranks hold different names, one of them in parts: save it, load it, and take it to rank 0. What is wrong."""
    from types import SimpleNamespace

    import paddle
    from erniecore_hybrid_parallel.config import HybridConfig
    from erniecore_hybrid_parallel.planning import make_mesh
    from erniecore_hybrid_parallel.process_group import open_process_group

    from erniecore.engine.training.full_weights import full_weights
    from erniecore.engine.training.gather import LocalShard

    config = HybridConfig(tensor=2)
    ranks = open_process_group(config, make_mesh(config, 2), cluster)
    ranks.placements.put(["both"], ranks.placements.along(cut=["tensor"], axis=1))
    whole = {
        n: np.random.default_rng(i).normal(size=(4, 6)).astype("float32")
        for i, n in enumerate(["first", "both", "last"])
    }
    mine = {("first", "last")[ranks.rank]: whole[("first", "last")[ranks.rank]]}
    mine["both"] = np.split(whole["both"], 2, axis=1)[ranks.rank]
    tensors = {name: paddle.to_tensor(array) for name, array in mine.items()}
    local = {name: LocalShard(t, ranks.shard_spec(name, t.shape)) for name, t in tensors.items()}
    return [
        *_saved_and_loaded(ranks, local, whole, root),
        *_taken(full_weights(ranks, SimpleNamespace(state_dict=lambda: tensors)), ranks, whole),
    ]


def _saved_and_loaded(ranks, local, whole, root):
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path

    from erniecore_checkpoint.manifest import file_from_json, file_json
    from erniecore_checkpoint.parts import PartWriter
    from erniecore_checkpoint.reader import load_checkpoint
    from erniecore_checkpoint.writer import Save

    from erniecore.engine.training.gather import assign, write_shards
    from erniecore.engine.training.restore import LocalArrays

    plan = assign(ranks, {"model": local})
    save = Save(Path(root), 1, {}, 3)
    directory = ranks.all_gather_object(str(save.begin(plan.num_bytes)) if ranks.rank == 0 else "")[0]
    with ThreadPoolExecutor(1) as executor:
        writer = PartWriter(Path(directory), plan.of(ranks.rank), executor, 1)
        write_shards(ranks, {"model": local}, plan, writer, patient=True)
        told = ranks.all_gather_object({file.name: file_json(file) for file in writer.files})
    files = {name: file_from_json(name, entry) for entries in told for name, entry in entries.items()}
    if ranks.rank == 0:
        save.finish(files, {"model": sorted(files)})
    ranks.all_gather_object("written")
    checkpoint = load_checkpoint(Path(root) / "step-00000001")
    found = checkpoint.require("model", dict.fromkeys(whole, ((4, 6), "F32")))
    yield from (name for name in whole if found[name].tobytes() != whole[name].tobytes())
    if sorted(len(names) for names in told) != [1, 1]:
        yield f"files by rank: {told}"
    mine = LocalArrays(found, local)
    yield from (f"part of {name}" for name in local if mine[name].tobytes() != local[name].tensor.numpy().tobytes())


def _taken(model, ranks, whole):
    found = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    if ranks.rank == 0:
        yield from (f"{name} on rank 0" for name in whole if found[name].tobytes() != whole[name].tobytes())
    elif found:
        yield "a model on rank 1"


def barriers(cluster):
    """What each rank is told when rank 1 does something else, when it is late, and when it has gone."""
    import time

    import paddle
    from erniecore_hybrid_parallel import regions
    from erniecore_hybrid_parallel.groups import World

    from erniecore.api import EnvironmentFault

    world = World(cluster, 1.0)
    group = world.comm([list(range(cluster.world_size))])
    told = [group.sent]
    group.all_reduce(paddle.ones([100]))
    told.append(group.sent)

    def heard(action):
        try:
            action()
        except EnvironmentFault as error:
            return error.message
        return ""

    other = group.all_reduce if cluster.rank == 0 else group.broadcast
    told.append(heard(lambda: other(paddle.ones([2]))))
    if cluster.rank == 1:
        time.sleep(2.0)  # late, and then it closes its connection
        for peer in world.barriers[0].peers.values():
            peer.close()
        cut(cluster.master)
        told.append(heard(lambda: world.comm([[0, 1]], "another")))
        told.append(heard(lambda: world.meet("the end")))
        return told
    told.append(heard(lambda: group.all_reduce(paddle.ones([2]))))
    world.barriers[0].peers[1].settimeout(60.0)
    told.append(heard(lambda: group.all_reduce(paddle.ones([2]))))

    def backward():  # through the PyLayer of a region
        x = paddle.ones([2])
        x.stop_gradient = False
        with world.faults():
            regions.enter(x, group).sum().backward()

    told.append(heard(backward))
    return told


def cut(address):
    """End this process's connections with the store at an address, as the death of the one that keeps it does."""
    import os
    import socket
    import stat

    port = int(address.rpartition(":")[2])
    for number in map(int, os.listdir("/proc/self/fd")):
        if not (os.path.exists(f"/proc/self/fd/{number}") and stat.S_ISSOCK(os.fstat(number).st_mode)):
            continue
        with socket.socket(fileno=os.dup(number)) as connection:
            if connection.family == socket.AF_INET and connection.getsockname()[1] != port:
                try:
                    if connection.getpeername()[1] == port:
                        connection.shutdown(socket.SHUT_RDWR)
                except OSError:  # it listens
                    continue


def until(cluster, words):
    """A run that stops on its way."""
    import erniecore
    from erniecore.errors import Preempted

    try:
        erniecore.run(overrides=words, console="none")
    except Preempted:
        return True
    return False


def poisonings(cluster, cases):
    """:func:`poisoned` for each case."""
    return [poisoned(cluster, *case) for case in cases]


def poisoned(cluster, words, first, last):
    """A run in which rank 1 alone finds gradients that are not finite in some steps; what it was like in the end."""
    import hashlib

    from erniecore.api import NumericsError

    run = _built(words)
    _, parameter = next(iter(run.state.model.named_parameters()))
    tries = []

    def poison(gradient):
        step = run.state.step + 1
        if cluster.rank == 1 and first <= step <= last:
            tries.append(step)
            return gradient * float("nan")
        return gradient

    parameter.register_hook(poison)
    try:
        with run._reported():
            run.train()
        ended = "finished"
    except NumericsError as error:
        ended = error.message
    digest, finite = hashlib.sha256(), True
    for _, tensor in sorted(run.state.model.state_dict().items()):
        array = tensor.detach().numpy()
        finite, _ = finite and bool(np.isfinite(array).all()), digest.update(array.tobytes())
    windows = [[w.first, w.last] for w in run.skipped.windows]
    return {"ended": ended, "finite": finite, "weights": digest.hexdigest(), "windows": windows, "tries": tries}
