"""What each micro-step runs: a function of (seed of the step, micro-step) and the settings alone, so all ranks agree without a
message and a resumed run draws what it would have drawn. No paddle.

ERNIE 5.0 technical report (2026), arXiv:2602.04705, section on elastic training: depth is full in 75 % of the steps, width and
sparsity in 80 %.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from erniecore.api.model import ElasticSizes
from erniecore_elastic.config import ElasticSection


class Drawn(NamedTuple):
    """What one micro-step runs; ``None``: all of it.

    Attributes:
        layers: places of the layers that run, ascending.
        experts: for each row of ``ElasticSizes`` the experts that tokens may go to, ascending.
        num_selected: experts per token.
    """

    layers: tuple[int, ...] | None = None
    experts: tuple[tuple[int, ...], ...] | None = None
    num_selected: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the whole model runs."""
        return self == WHOLE

    def inputs(self) -> dict[str, NDArray[np.int64]]:
        """As ``ElasticModel.features`` takes them."""
        given = {"layers": self.layers, "experts": self.experts}
        found = {name: np.asarray(values, np.int64) for name, values in given.items() if values is not None}
        return (
            found if self.num_selected is None else {**found, "num_selected": np.asarray([self.num_selected], np.int64)}
        )


#: the whole model
WHOLE = Drawn()


def draw(config: ElasticSection, sizes: ElasticSizes, seed: int, micro: int) -> Drawn:
    """What micro-step ``micro`` (0-based) of the step with this seed runs. Each axis has numbers of its own: to switch one off
    changes nothing of the others."""
    if micro < config.whole:
        return WHOLE
    layers = experts = num_selected = None
    count = _size(config.depths, config.depth_probability, seed, micro, "depth")
    if count is not None and count < sizes.layers:
        layers = _layers(config.layer_choice, sizes.layers, count, seed, micro)
    count = _size(config.widths, config.width_probability, seed, micro, "width")
    if count is not None and count < sizes.experts:
        experts = _experts(sizes, count, config.expert_groups, seed, micro)
    count = _size(config.selected, config.selected_probability, seed, micro, "selected")
    if count is not None and count < sizes.num_selected:
        num_selected = count
    if experts is not None:
        most = len(experts[0])
        num_selected = min(num_selected or sizes.num_selected, most) if most < sizes.num_selected else num_selected
    return Drawn(layers, experts, num_selected)


def even_layers(total: int, count: int) -> tuple[int, ...]:
    """``count`` of ``total`` layers, as evenly spaced as whole numbers allow; the first and the last are among them."""
    if not 2 <= count <= total:
        raise ValueError(f"a model of {total} layers has no part with {count}: choose 2 to {total}")
    return tuple((2 * i * (total - 1) + count - 1) // (2 * (count - 1)) for i in range(count))


def _layers(choice: str, total: int, count: int, seed: int, micro: int) -> tuple[int, ...]:
    if choice == "even":
        return even_layers(total, count)
    inner = 1 + _order(seed, micro, "layers", total - 2)[: count - 2]
    return (0, *sorted(inner.tolist()), total - 1)


def _experts(sizes: ElasticSizes, count: int, groups: int, seed: int, micro: int) -> tuple[tuple[int, ...], ...]:
    """As many of each group of neighbors; other ones in each row."""
    each, kept = sizes.experts // groups, count // groups
    rows = []
    for row in range(sizes.rows):
        parts = [group * each + _order(seed, micro, f"experts/{row}/{group}", each)[:kept] for group in range(groups)]
        rows.append(tuple(sorted(int(expert) for part in parts for expert in part)))
    return tuple(rows)


def _size(sizes: Sequence[int], probability: float, seed: int, micro: int, axis: str) -> int | None:
    """The smaller size of this axis, or None: it is whole."""
    if not sizes:
        return None
    smaller, which = uniforms(seed, micro, axis, 2)
    return int(sizes[int(which * len(sizes))]) if smaller < probability else None


def uniforms(seed: int, micro: int, purpose: str, count: int) -> list[float]:
    """Numbers in [0, 1), the same on every machine and with every release of numpy."""
    return [float(raw >> np.uint64(11)) * 2.0**-53 for raw in _raw(seed, micro, purpose, count)]


def _order(seed: int, micro: int, purpose: str, count: int) -> NDArray[np.int64]:
    """A permutation of 0 … count - 1."""
    return _raw(seed, micro, purpose, max(count, 1)).argsort(kind="stable")[:count]


def _raw(seed: int, micro: int, purpose: str, count: int) -> NDArray[np.uint64]:
    digest = hashlib.blake2b(f"{seed}/elastic/{micro}/{purpose}".encode(), digest_size=16).digest()
    found: NDArray[np.uint64] = np.random.Philox(counter=0, key=int.from_bytes(digest, "little")).random_raw(count)
    return found
