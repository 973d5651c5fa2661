"""What the processes of the tests of overlapping messages do."""

from pathlib import Path


def late(cluster):
    """Gradients of two parameters summed over two ranks in four steps: two as usual, one in which rank 1 makes a second pass, and
    one in which rank 0 does not use the second parameter. Also how many buckets went early."""
    from types import SimpleNamespace

    import paddle
    from erniecore_hybrid_parallel import buckets
    from erniecore_hybrid_parallel.background import AsyncComm
    from erniecore_hybrid_parallel.groups import World
    from erniecore_hybrid_parallel.overlap import GradientOverlap

    buckets.BUCKET = 2  # one parameter in each
    world = World(cluster, 60.0)
    comm, beside = (world.comm([[0, 1]], purpose) for purpose in ("", "gradients"))
    beside = AsyncComm(beside)
    parameters = [paddle.create_parameter([3], "float32") for _ in range(2)]
    slots = [SimpleNamespace(name=str(i), parameter=p) for i, p in enumerate(parameters)]
    overlap = GradientOverlap(lambda slot: comm, lambda comm: beside, ())
    overlap.attach(slots)
    rank, found = cluster.rank, []
    for step in range(4):
        overlap.begin(1)
        for turn in range(2 if (step, rank) == (2, 1) else 1):
            used = parameters[:1] if (step, rank) == (3, 0) else parameters
            sum((p * float(10 * rank + i + turn + 1)).sum() for i, p in enumerate(used)).backward()
        early = sum(bucket.early for lane in overlap._lanes for bucket in lane.buckets)
        overlap.reduce(slots)
        found.append([early, *(p.grad.numpy().tolist() for p in parameters)])
        for p in parameters:
            p.clear_gradient(set_to_zero=False)
    return found


def events(cluster, cases):
    """For each case, step by step, what happens in which order. Layers that gather their parameters (stage 3) have the numbers of
    the order in which they are first entered."""
    from runpy import run_path

    from erniecore_hybrid_parallel import background, buckets, gradients, parameters, process_group

    from erniecore.engine.training.callbacks import Callbacks

    buckets.BUCKET = gradients.WAITING = 4096  # a tiny model has several messages too
    log, numbers = [], {}

    def number(unit):
        return numbers.setdefault(id(unit), len(numbers))

    def told(owner, name, before, after=lambda *_, **__: None):
        own = getattr(owner, name)

        def call(*args, **options):
            log.append(before(*args, **options))
            result = own(*args, **options)
            log.append(after(*args, **options))
            return result

        setattr(owner, name, call)

    nothing = lambda *_, **__: None  # noqa: E731
    told(Callbacks, "step_start", lambda _, step: f"step {step}")
    told(parameters.Unit, "forward", nothing, lambda unit, *_, **__: f"computed {number(unit)}")
    told(
        parameters.ParameterShards,
        "enter",
        lambda _, unit, *, backward=False: f"{'gradients of' if backward else 'enter'} {number(unit)}",
    )
    told(parameters.ParameterShards, "_begin", lambda _, unit: f"gather {number(unit)}")
    for name in ("all_reduce", "reduce_scatter"):
        told(background.AsyncComm, name, lambda *_, name=name: name)
    told(process_group.HybridProcessGroup, "backward_done", lambda _: "pass done")
    found, built = [], run_path(str(Path(__file__).with_name("hybrid_helpers.py")))["_built"]
    for words in cases:
        log.clear()
        numbers.clear()
        built(words).train()
        steps = []
        for event in filter(None, log):
            if event.startswith("step "):
                steps.append([])
            elif steps:
                steps[-1].append(event)
        found.append(steps)
    return found
