"""A scalar head beside the language model's own: what reward models are. config.json says whether a model has one (its
class is ``…ForSequenceClassification``), so that whoever opens a directory builds it; a method asks for one with the
capability ``score-head``. Not a loss. Importing this module is light: paddle comes in where a head is made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from erniecore.types.model import ModelBundle, StateAdapter, TensorMap
from erniecore.types.records import Json

if TYPE_CHECKING:
    from erniecore.types.samples import Array

#: the layer's name in the model and, as transformers calls it, in public checkpoints
SCORE = "score"
WEIGHT = f"{SCORE}.weight"
_LANGUAGE_MODEL, _CLASSIFIER = "ForCausalLM", "ForSequenceClassification"


def has_score(architecture: Json) -> bool:
    """Whether config.json describes a model with a score head."""
    return any(str(name).endswith(_CLASSIFIER) for name in architecture.get("architectures") or ())


def with_score(architecture: Json) -> dict[str, Any]:
    """config.json of the same model with a score head, in the words of transformers."""
    if has_score(architecture):
        return dict(architecture)
    names = architecture.get("architectures") or [_class_of(str(architecture.get("model_type", "")))]
    return {
        **architecture,
        "architectures": [str(name).removesuffix(_LANGUAGE_MODEL) + _CLASSIFIER for name in names],
        "num_labels": 1,
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "problem_type": "regression",
    }


def _class_of(model_type: str) -> str:
    """``ernie4_5_moe`` -> ``Ernie4_5_Moe``, as transformers names classes."""
    return "_".join(part.capitalize() for part in model_type.split("_"))


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
        if self.trained and not self.stored:
            architecture = with_score(architecture)
        return architecture, state_with_score(adapter, architecture)

    def of_directory(self, adapter: StateAdapter) -> StateAdapter:
        """The ``StateAdapter`` of the weights that the run starts from."""
        return adapter if self.stored else without_head(adapter)

    def add_stored(self, model: Any) -> Any:
        """``model`` as built, with a head to load, if the directory has one."""
        return add_score_head(model) if self.stored else model

    def add_trained(self, model: Any) -> Any:
        """``model`` as adapted, with a trainable head if the method trains one: an adapter freezes what it finds."""
        if self.trained:
            model = add_score_head(model)
            model.score.weight.stop_gradient = False
        return model

    def adapter_shapes(
        self, shapes: Mapping[str, Sequence[int]] | None, architecture: Json
    ) -> Mapping[str, Sequence[int]] | None:
        """Name -> shape of what is trained under an adapter, the head included; None without an adapter."""
        if shapes is None or not self.trained:
            return shapes
        return {**shapes, WEIGHT: head_map(architecture).shape}


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
    return HeadChoice(stored=has_score(architecture)).add_stored(model), state_with_score(adapter, architecture)


def as_saved(bundle: ModelBundle, names: Collection[str]) -> ModelBundle:
    """``bundle`` with a head if it is among the ``names`` of weights that were saved."""
    if WEIGHT not in names:
        return bundle
    return completed(replace(bundle, model=add_score_head(bundle.model)))
