"""The layer of a score head and how it is stored; config.json says who has one. Importing this module is light: paddle comes
in where a head is made.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from erniecore.engine.models.config_json import has_score, with_score
from erniecore.types.model import ModelBundle, StateAdapter, TensorMap
from erniecore.types.records import Json

if TYPE_CHECKING:
    from erniecore.types.samples import Array


#: the layer's name in the model and, as transformers calls it, in public checkpoints
SCORE = "score"
WEIGHT = f"{SCORE}.weight"


def head_map(architecture: Json) -> TensorMap:
    """How the head [H, 1] is stored: [1, H], float32 whatever the model's dtype, because rewards are compared."""
    hidden = int(architecture["hidden_size"])
    return TensorMap(WEIGHT, (hidden, 1), (WEIGHT,), ((1, hidden),), _turned, _turned_back, "float32")


def _turned(arrays: Sequence[Array]) -> Array:
    return arrays[0].reshape(-1, 1)


def _turned_back(array: Array) -> Sequence[Array]:
    return (array.reshape(1, -1),)


class ScoreState:
    """The ``StateAdapter`` of a model with a score head; ``model`` is that of the model without."""

    def __init__(self, model: StateAdapter, architecture: Json) -> None:
        self.model, self.head = model, head_map(architecture)

    def layout_of(self, names: Sequence[str]) -> str:
        """Layout of the model's own weights."""
        return self.model.layout_of([name for name in names if name != WEIGHT])

    def maps(self, layout: str, names: Sequence[str] = ()) -> Sequence[TensorMap]:
        """Those of the model, then the head."""
        return [*self.model.maps(layout, [name for name in names if name != WEIGHT]), self.head]

    def ignored(self, name: str) -> bool:
        return self.model.ignored(name)


def state_with_score(adapter: StateAdapter, architecture: Json) -> StateAdapter:
    """``adapter`` with the head, if ``architecture`` has one."""
    return ScoreState(adapter, architecture) if has_score(architecture) else adapter


def without_head(adapter: StateAdapter) -> StateAdapter:
    """The model's own ``StateAdapter``: for weights that were saved before there was a head."""
    return adapter.model if isinstance(adapter, ScoreState) else adapter


def add_score_head(model: Any) -> Any:
    """``model`` with a trainable head ``score`` [H, 1] in float32, N(0, 1 / (H + 1)), if it has none; without a bias, which
    differences of rewards cannot see. ``model.architecture`` says so from then on.

    The deviation is that of Stiennon et al., "Learning to summarize from human feedback" (2020), arXiv:2009.01325.
    """
    if getattr(model, SCORE, None) is not None:
        return model
    import paddle

    weight, transposed, _ = model.head()
    hidden = int(weight.shape[1 if transposed else 0])
    before = paddle.get_default_dtype()
    paddle.set_default_dtype("float32")
    try:
        start = paddle.nn.initializer.Normal(0.0, (hidden + 1) ** -0.5)
        layer = paddle.nn.Linear(hidden, 1, weight_attr=paddle.ParamAttr(initializer=start), bias_attr=False)
    finally:
        paddle.set_default_dtype(before)
    setattr(model, SCORE, layer)
    model.architecture = with_score(model.architecture)
    return model


def completed(bundle: ModelBundle) -> ModelBundle:
    """``bundle`` for a model that got a head from an adapter or a checkpoint: config.json and weights with the head."""
    if getattr(bundle.model, SCORE, None) is None or has_score(bundle.architecture):
        return bundle
    architecture = with_score(bundle.architecture)
    return replace(bundle, architecture=architecture, adapter=ScoreState(bundle.adapter, architecture))


def as_described(model: Any, adapter: StateAdapter, architecture: Json) -> tuple[Any, StateAdapter]:
    """A model as built and its ``StateAdapter``, with a head if ``architecture`` has one."""
    model = add_score_head(model) if has_score(architecture) else model
    return model, state_with_score(adapter, architecture)


def as_saved(bundle: ModelBundle, names: Collection[str]) -> ModelBundle:
    """``bundle`` with a head if it is among the ``names`` of weights that were saved."""
    if WEIGHT not in names:
        return bundle
    return completed(replace(bundle, model=add_score_head(bundle.model)))
