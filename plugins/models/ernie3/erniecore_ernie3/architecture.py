"""What a config.json says about an ERNIE 3.0 model, checked once. No paddle, no numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from erniecore_ernie45.architecture import MOST_LAYERS, Keys

from erniecore.api import Json
from erniecore.api.model import DecoderShape, LayerShape

#: ``same-layer``: what a layer gave out in the segment before (ERNIE-Doc, arXiv:2012.15688); ``layer-below``: what it took in
#: (Transformer-XL, arXiv:1901.02860)
RECURRENCES = ("same-layer", "layer-below")
#: the task module that every model has, and the one that a model for generation alone can do without
GENERATION, UNDERSTANDING = "nlg", "nlu"
#: with more, reordering has more classes (5913 with 7) than anybody learns
MOST_SEGMENTS = 6


@dataclass(frozen=True)
class Block:
    """Sizes of the layers of one module."""

    hidden: int
    mlp: int
    heads: int

    @property
    def head_dim(self) -> int:
        """Columns of a head."""
        return self.hidden // self.heads


@dataclass(frozen=True)
class Architecture:
    """Sizes of the modules. ``source`` is the whole config.json, unknown keys included.

    Attributes:
        num_universal_layers, num_task_layers: a pass goes through the first, then through those of one task module.
        universal, task: sizes of their layers.
        understands: whether there is a module for understanding beside that for generation.
        memory_length: positions of earlier segments that a layer attends to. recurrence: one of ``RECURRENCES``.
        max_segments: of a paragraph in sentence reordering.
        num_labels: classes of the classifier over the module for understanding; 0: there is none.
    """

    vocab_size: int
    universal: Block
    task: Block
    num_universal_layers: int
    num_task_layers: int
    understands: bool
    memory_length: int
    recurrence: str
    max_segments: int
    num_labels: int
    layer_norm_eps: float
    rope_theta: float
    initializer_range: float
    source: Mapping[str, Any] = field(repr=False)

    @property
    def hidden_size(self) -> int:
        """Width of the embedding and of the universal module."""
        return self.universal.hidden

    @property
    def projects(self) -> bool:
        """Whether task modules have another width than the universal module."""
        return self.task.hidden != self.universal.hidden

    def shape(self) -> DecoderShape:
        """Sizes for the plan: the layers of a pass for generation."""
        wide, narrow = self._layer(self.universal), self._layer(self.task)
        layers = (wide,) * self.num_universal_layers + (narrow,) * self.num_task_layers
        return DecoderShape(self.hidden_size, self.vocab_size, True, layers)

    def _layer(self, block: Block) -> LayerShape:
        # The plan counts MLPs with a gate, three matrices as wide as the stream: two matrices are 2/3 of one. A narrower
        # stream is counted as a narrower MLP. A multiple of 8, so that tensor parallelism finds it divisible.
        mlp = max(8, 8 * round(block.mlp * block.hidden / (12 * self.hidden_size)))
        return LayerShape(block.heads, block.heads, block.head_dim, mlp)

    @classmethod
    def parse(cls, source: Json, where: str = "config.json") -> Architecture:
        """Raises ``CheckpointError`` for missing, impossible or contradictory keys."""
        keys = Keys(source, where)
        keys.only("model_type", "ernie3")
        keys.only("hidden_act", "gelu")
        keys.only("tie_word_embeddings", True)
        keys.texts("architectures")
        keys.integer("max_position_embeddings", 1)
        layers = keys.integer("num_hidden_layers", maximum=MOST_LAYERS)
        task_layers = keys.integer("num_task_layers", maximum=MOST_LAYERS)
        if task_layers >= layers:
            raise keys.fault(
                "num_task_layers",
                f"not below num_hidden_layers = {layers}",
                expected=f"at most {layers - 1}: the universal module has num_hidden_layers - num_task_layers layers",
            )
        understands = UNDERSTANDING in _task_modules(keys)
        num_labels = keys.integer("num_labels", 0, minimum=0, maximum=1 << 16)
        if num_labels and not understands:
            raise keys.fault("num_labels", "a classifier needs the module `nlu`", fix="add `nlu` to task_modules")
        return cls(
            vocab_size=keys.integer("vocab_size"),
            universal=_block(keys, ""),
            task=_block(keys, "task_"),
            num_universal_layers=layers - task_layers,
            num_task_layers=task_layers,
            understands=understands,
            memory_length=keys.integer("memory_length", minimum=0),
            recurrence=_recurrence(keys),
            max_segments=keys.integer("max_segments", 3, minimum=2, maximum=MOST_SEGMENTS),
            num_labels=num_labels,
            layer_norm_eps=keys.number("layer_norm_eps"),
            rope_theta=keys.number("rope_theta"),
            initializer_range=keys.number("initializer_range", 0.02),
            source=dict(source),
        )


def _block(keys: Keys, prefix: str) -> Block:
    hidden, heads = keys.integer(f"{prefix}hidden_size"), keys.integer(f"{prefix}num_attention_heads")
    if hidden % heads or hidden // heads % 2:
        raise keys.fault(
            f"{prefix}num_attention_heads",
            f"{heads} heads do not divide {prefix}hidden_size = {hidden} into even parts",
            expected="heads of an even size: positions are rotary",
        )
    return Block(hidden, keys.integer(f"{prefix}intermediate_size"), heads)


def _task_modules(keys: Keys) -> list[str]:
    keys.texts("task_modules")
    found = keys.source.get("task_modules") or [UNDERSTANDING, GENERATION]
    if GENERATION not in found or set(found) - {UNDERSTANDING, GENERATION} or len(set(found)) < len(found):
        raise keys.fault("task_modules", "not the task modules of this model", expected='["nlu", "nlg"] or ["nlg"]')
    return list(found)


def _recurrence(keys: Keys) -> str:
    found = keys.source.get("recurrence") or RECURRENCES[0]
    if found not in RECURRENCES:
        raise keys.fault("recurrence", "not known", expected=" or ".join(RECURRENCES))
    return str(found)
