"""The part of a model that one pass runs: some of its layers, some experts of each, fewer experts per token. See
``erniecore.api.model.ElasticModel``. No weights here.

Letters: L layers and MTP layers, m experts of a layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from paddle import Tensor  # noqa: TID253


@dataclass(frozen=True, slots=True)
class Submodel:
    """What runs; ``None`` in a field: as in the whole model.

    Attributes:
        layers: places of the layers that run; the others pass their input on.
        experts: int64 [L, m], ascending: the experts of each layer that tokens may go to.
        num_selected: experts per token.
    """

    layers: frozenset[int] | None = None
    experts: Tensor | None = None
    num_selected: int | None = None

    def runs(self, place: int) -> bool:
        """Whether the layer at ``place`` runs."""
        return self.layers is None or place in self.layers


def submodel_of(layers: Tensor | None, experts: Tensor | None, num_selected: Tensor | None) -> Submodel | None:
    """The arguments of ``features`` together; None: the whole model. Raises ``ValueError`` where no layer would run."""
    if layers is None and experts is None and num_selected is None:
        return None
    places = None if layers is None else frozenset(layers.numpy().tolist())
    if places is not None and not places:
        raise ValueError("layers names none: at least one layer runs")
    return Submodel(places, experts, None if num_selected is None else int(num_selected.numpy()[0]))
