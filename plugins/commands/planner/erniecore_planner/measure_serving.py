"""Generation with a model, timed in the pool that every answer of this project comes from: tokens per second of prompts and of
answers, by rows and length, and how long single steps take. Random prompts, no stop tokens. Imports paddle when called.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

from erniecore.api.measuring import default_device, model_shape
from erniecore.api.model import DecoderShape, ModelBundle
from erniecore_planner.data_rates import ServeRate, percentile
from erniecore_planner.jobs import active_parameters
from erniecore_planner.rates import identity


def measure_serving(
    model: Path, device: str, dtype: str, *, rows: Sequence[int], lengths: Sequence[int], tokens: int
) -> ServeRate:
    """Every number of rows with prompts of every length, ``tokens`` new ones each.

    Raises:
        UsageError: there is no model, or prompt and answer are longer than it allows.
    """
    from erniecore.api.run import open_model

    bundle = open_model(model, dtype=dtype, device=device)
    facts = default_device(device).describe()
    name, shape = model_shape(model, bundle)
    prefill, decode = [], []
    timed_generation(bundle, 1, min(lengths), 4)  # to warm up
    for length in lengths:
        for count in rows:
            times = timed_generation(bundle, count, length, tokens)
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
        active=active_of(shape, bundle),
        prefill=tuple(prefill),
        decode=tuple(decode),
    )


def timed_generation(bundle: ModelBundle, count: int, length: int, tokens: int) -> list[float]:
    """Seconds until the first tokens of ``count`` prompts, and of each further step."""
    import numpy as np

    draw = np.random.default_rng(0)
    prompts = draw.integers(0, int(bundle.architecture["vocab_size"]), [count, length]).tolist()
    times = []
    last = time.perf_counter()
    for _ in decode_steps(bundle, prompts, tokens + 1):
        now = time.perf_counter()
        times.append(now - last)
        last = now
    return times


def active_of(shape: DecoderShape | None, bundle: ModelBundle) -> int:
    """Parameters that a token passes."""
    return active_parameters(shape) if shape else sum(int(p.size) for p in bundle.model.parameters())


def decode_steps(bundle: ModelBundle, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> Iterator[None]:
    """Greedy decoding of prompts of token ids as one batch, without stop tokens; yields after each step, the first of which
    takes the prompts."""
    from erniecore_generation.batching import Pool
    from erniecore_generation.generate import evaluating
    from erniecore_generation.sampling import Sampling

    with evaluating(bundle.model):
        pool = Pool(bundle.model, [list(p) for p in prompts], sampling=Sampling(), max_new_tokens=max_new_tokens)
        for _ in pool.run():
            yield
