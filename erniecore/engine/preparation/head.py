"""The score head of a run: whether the model that it starts from has one, and whether the method trains one (capability
``score-head``). Not a loss. What a head is, is in ``models/score_head.py``, which only runs with one import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from erniecore.engine.models.config_json import with_score
from erniecore.types.model import Layout, StateAdapter
from erniecore.types.records import Json


@dataclass(frozen=True, slots=True)
class HeadChoice:
    """The score head of a run's model; all that the run does about it is asked here.

    Attributes:
        stored: the directory that the run starts from has one. trained: the method trains one.
    """

    stored: bool = False
    trained: bool = False

    def described(self, architecture: Json, adapter: StateAdapter) -> tuple[Json, StateAdapter]:
        """config.json and ``StateAdapter`` of the model as it is trained."""
        if not self.stored and not self.trained:
            return architecture, adapter
        from erniecore.engine.models.score_head import state_with_score

        if not self.stored:
            architecture = with_score(architecture)
        return architecture, state_with_score(adapter, architecture)

    def of_directory(self, adapter: StateAdapter) -> StateAdapter:
        """The ``StateAdapter`` of the weights that the run starts from."""
        return adapter if self.stored else self.without_head(adapter)

    def without_head(self, adapter: StateAdapter) -> StateAdapter:
        """The model's own ``StateAdapter``."""
        if not self.stored and not self.trained:
            return adapter
        from erniecore.engine.models.score_head import without_head

        return without_head(adapter)

    def styled(self, layout: Layout) -> Layout:
        """``layout``, in which a head is whole on every rank, unless the model says otherwise."""
        if not self.stored and not self.trained:
            return layout
        from erniecore.engine.models.score_head import WEIGHT

        return replace(layout, rules=(*layout.rules, (WEIGHT, "replicate")))

    def add_stored(self, model: Any) -> Any:
        """``model`` as built, with a head to load, if the directory has one."""
        return _with_head(model) if self.stored else model

    def add_trained(self, model: Any) -> Any:
        """``model`` as adapted, with a trainable head if the method trains one: an adapter freezes what it finds."""
        if self.trained:
            model = _with_head(model)
            model.score.weight.stop_gradient = False
        return model

    def adapter_shapes(
        self, shapes: Mapping[str, Sequence[int]] | None, architecture: Json
    ) -> Mapping[str, Sequence[int]] | None:
        """Name -> shape of what is trained under an adapter, the head included; None without an adapter."""
        if shapes is None or not self.trained:
            return shapes
        from erniecore.engine.models.score_head import WEIGHT, head_map

        return {**shapes, WEIGHT: head_map(architecture).shape}


def _with_head(model: Any) -> Any:
    from erniecore.engine.models.score_head import add_score_head

    return add_score_head(model)
