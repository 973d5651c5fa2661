"""Which layers are trained when: a function of (seed, number of updates) alone, the same on every rank and after a resume. No
paddle.

A layer is the beginning of its parameters' names, up to its number: ``model.layers.3``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

_LAYER = re.compile(r"(?:^|\.)(?:layers|blocks|h)\.(\d+)(?=\.)")


def layer_of(name: str) -> str:
    """The layer of a parameter; empty for what is in none, such as embedding, head and final norm."""
    match = _LAYER.search(name)
    return "" if match is None else name[: match.end()]


def layers_of(names: Iterable[str]) -> tuple[str, ...]:
    """All layers, in an order that depends on their names alone."""
    found = {layer_of(name) for name in names} - {""}
    return tuple(sorted(found, key=lambda layer: (layer.rpartition(".")[0], int(layer.rpartition(".")[2]))))


@lru_cache(maxsize=64)
def chosen(layers: tuple[str, ...], count: int, seed: int, period: int) -> frozenset[str]:
    """``count`` of ``layers``, each as likely as any other, for one period."""
    import numpy as np  # the plan asks here: importing the plugin is light

    key = int.from_bytes(hashlib.blake2b(f"{seed}/lisa/{period}".encode(), digest_size=16).digest(), "little")
    order = np.random.Philox(counter=0, key=key).random_raw(max(len(layers), 1)).argsort(kind="stable")
    return frozenset(layers[index] for index in order[:count] if layers)


def entered(layer: str, layers: Sequence[str], count: int, seed: int, period: int) -> int:
    """The period in which a layer that is trained in ``period`` began to be, without a gap since."""
    while period and layer in chosen(tuple(layers), count, seed, period - 1):
        period -= 1
    return period
