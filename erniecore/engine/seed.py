"""Random seeds of a run, derived from (seed, purpose, step). A checkpoint saves no generator state, because the seeds of step n
follow from the seed of the run.

Rule: the seed of a stream is the first four bytes of BLAKE2b over ``"<seed>/<purpose>/<step>"``. The value is part of
the checkpoint contract: changing it breaks the exact continuation of older runs.
"""

from __future__ import annotations

import hashlib

#: The purposes that the engine itself uses; plugins choose names of their own.
INIT, STEP, OBJECTIVE = "init", "step", "objective"


def derive_seed(seed: int, purpose: str, step: int = 0) -> int:
    """A 32-bit seed for one purpose and step: the same on every machine, Python version and process.

    Args:
        seed: the run's seed (``run.seed``).
        purpose: which stream, e.g. ``"dropout"``; two purposes never share a stream.
        step: optimizer step, epoch or index within the purpose.

    Raises:
        ValueError: the purpose is empty or contains ``/``, or a number is negative.
    """
    if not purpose or "/" in purpose:
        raise ValueError(f"a purpose is a word without '/', got {purpose!r}")
    if seed < 0 or step < 0:
        raise ValueError(f"seed and step must not be negative, got {seed} and {step}")
    digest = hashlib.blake2b(f"{seed}/{purpose}/{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little")


def seed_paddle(seed: int, purpose: str, step: int = 0) -> None:
    """Put paddle's global generator (dropout, initialization, sampling) at the start of that stream."""
    import paddle

    paddle.seed(derive_seed(seed, purpose, step))
