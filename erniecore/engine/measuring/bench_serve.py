"""Generation with a model, timed in the pool that every answer of this project comes from: tokens per second of prompts and of
answers, by rows and length, and how long single steps take. Random prompts, no stop tokens. Imports paddle when called.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from erniecore.host import assemble
from erniecore.planning.data_rates import ServeRate, percentile
from erniecore.planning.rates import identity


def measure_serving(
    model: Path, device: str, dtype: str, *, rows: Sequence[int], lengths: Sequence[int], tokens: int
) -> ServeRate:
    """Every number of rows with prompts of every length, ``tokens`` new ones each.

    Raises:
        UsageError: there is no model, or prompt and answer are longer than it allows.
    """
    from erniecore import registry
    from erniecore.config.selection import plugin_for_directory
    from erniecore.engine.entry import open_model
    from erniecore.engine.models import bundles

    bundle = open_model(model, dtype=dtype, device=device)
    opened = registry.load("device", device)
    facts = assemble({"device": opened}).hook.ernie_open_device(config=opened.Config(), cluster=_alone()).describe()
    name = plugin_for_directory(bundles.locate(model).path)
    prefill, decode = [], []
    timed_answers(bundle, 1, min(lengths), 4)  # to warm up
    for length in lengths:
        for count in rows:
            times = timed_answers(bundle, count, length, tokens)
            first, rest = times[0], times[1:]
            if count == min(rows):
                prefill.append((length, count * length / first))
            middle, late = percentile(rest, 0.5), percentile(rest, 0.95)
            decode.append((count, length, count * len(rest) / sum(rest), middle, late))
    return ServeRate(
        device=device,
        machine=identity(facts),
        dtype=dtype,
        day=date.today().isoformat(),
        model=f"{name} in {model.name or model}",
        active=active_of(bundles.model_plugin(name), bundle),
        prefill=tuple(prefill),
        decode=tuple(decode),
    )


def _alone() -> Any:
    from erniecore.types import Cluster

    return Cluster()


def timed_answers(bundle: Any, count: int, length: int, tokens: int) -> list[float]:
    """Seconds until the first tokens of ``count`` prompts, and of each further step."""
    import numpy as np

    from erniecore.engine.generation.batching import Pool
    from erniecore.engine.generation.generate import evaluating
    from erniecore.engine.generation.sampling import Sampling

    draw = np.random.default_rng(0)
    prompts = draw.integers(0, int(bundle.architecture["vocab_size"]), [count, length]).tolist()
    times = []
    with evaluating(bundle.model):
        pool = Pool(bundle.model, prompts, sampling=Sampling(), max_new_tokens=tokens + 1)
        last = time.perf_counter()
        for _ in pool.run():
            now = time.perf_counter()
            times.append(now - last)
            last = now
    return times


def active_of(plugin: Any, bundle: Any) -> int:
    """Parameters that a token passes."""
    from erniecore.planning.jobs import active_parameters

    shape = assemble({"model": plugin}).hook.ernie_decoder_shape(architecture=bundle.architecture)
    return active_parameters(shape) if shape else sum(int(p.size) for p in bundle.model.parameters())
