"""Public checkpoint names of PaddleOCR-VL and ours. numpy only.

The published files have ``visual.``, ``mlp_AR.`` and ``model.``; models in memory of newer libraries, and files that are written
from there, have ``model.visual.``, ``model.projector.`` and ``model.language_model.``. Both are read, the first is written.
The tower's queries, keys and values are one matrix here, and three in files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from erniecore_ernie45.state import Ernie45StateAdapter, Rules

from erniecore.api.model import TensorMap
from erniecore_paddleocr_vl.architecture import OcrArchitecture

if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]

TOWER, PROJECTOR, TEXT = "visual.vision_model.", "mlp_AR.", "model."
#: the same in newer libraries
NEWER = {"visual.": "model.visual.", PROJECTOR: "model.projector.", TEXT: "model.language_model."}
#: of the published files; the model has no use for them
UNUSED = ("vision_model.head.", "packing_position_embedding")


class OcrStateAdapter(Ernie45StateAdapter):
    """Implements ``erniecore.api.StateAdapter``. A text token passes nothing of tower and projector."""

    def __init__(self, arch: OcrArchitecture) -> None:
        super().__init__(arch)
        self.vl = arch

    def layout_of(self, names: Sequence[str]) -> str:
        """Raises ``CheckpointError`` when the names are of no known layout."""
        return super().layout_of([TEXT + name.removeprefix(NEWER[TEXT]) if _newer([name]) else name for name in names])

    def maps(self, layout: str, names: Sequence[str] = ()) -> Sequence[TensorMap]:
        maps = super().maps(layout, names)
        return (
            [replace(entry, sources=tuple(map(_name_now, entry.sources))) for entry in maps] if _newer(names) else maps
        )

    def ignored(self, name: str) -> bool:
        """A pooling head and a second table of positions."""
        return any(part in name for part in UNUSED)

    def inside(self, rules: Rules) -> Iterator[TensorMap]:
        """Tensor maps of the decoder layers, then of tower and projector."""
        yield from super().inside(rules)
        for entry in (*self.tower(rules), *self.projector(rules)):
            yield replace(entry, active_share=0.0)

    def projector(self, rules: Rules) -> Iterator[TensorMap]:
        """Between the tower and the text part."""
        vision = self.vl.vision
        yield from _norm(rules, "projector.pre_norm", f"{PROJECTOR}pre_norm", vision.hidden_size)
        for layer, size in (("linear_1", vision.merged_size), ("linear_2", self.vl.hidden_size)):
            yield from _linear(rules, f"projector.{layer}", f"{PROJECTOR}{layer}", vision.merged_size, size)

    def tower(self, rules: Rules) -> Iterator[TensorMap]:
        """Tensor maps of the vision tower."""
        vision = self.vl.vision
        size, wide = vision.hidden_size, vision.intermediate_size
        embed, public = "vision_model.patch_embed.", f"{TOWER}embeddings."
        kernel = (size, vision.channels, vision.patch_size, vision.patch_size)
        yield _kernel(f"{embed}proj.weight", f"{public}patch_embedding.weight", kernel)
        yield _same(rules, f"{embed}proj.bias", f"{public}patch_embedding.bias", (size,))
        table = (self.vl.table_side**2, size)
        yield _same(rules, f"{embed}positions", f"{public}position_embedding.weight", table)
        for index in range(vision.depth):
            block, public = f"vision_model.blocks.{index}.", f"{TOWER}encoder.layers.{index}."
            for ours, theirs in (("norm1", "layer_norm1"), ("norm2", "layer_norm2")):
                yield from _norm(rules, block + ours, public + theirs, size)
            yield from _joined(rules, f"{block}attn.qkv", [f"{public}self_attn.{part}_proj" for part in "qkv"], size)
            yield from _linear(rules, f"{block}attn.proj", f"{public}self_attn.out_proj", size, size)
            yield from _linear(rules, f"{block}mlp.fc1", f"{public}mlp.fc1", size, wide)
            yield from _linear(rules, f"{block}mlp.fc2", f"{public}mlp.fc2", wide, size)
        yield from _norm(rules, "vision_model.ln", f"{TOWER}post_layernorm", size)


def _newer(names: Sequence[str]) -> bool:
    return any(name.startswith(NEWER[TEXT]) for name in names)


def _name_now(name: str) -> str:
    before = next((prefix for prefix in NEWER if name.startswith(prefix)), "")
    return NEWER.get(before, "") + name[len(before) :]


def _same(rules: Rules, ours: str, public: str, shape: tuple[int, ...]) -> TensorMap:
    return replace(rules.same(ours, shape), sources=(public,))


def _norm(rules: Rules, ours: str, public: str, size: int) -> Iterator[TensorMap]:
    for part in ("weight", "bias"):
        yield _same(rules, f"{ours}.{part}", f"{public}.{part}", (size,))


def _linear(rules: Rules, ours: str, public: str, num_in: int, num_out: int) -> Iterator[TensorMap]:
    for entry in rules.linear(ours, num_in, num_out, True):
        yield replace(entry, sources=(public + entry.name[len(ours) :],))


def _joined(rules: Rules, ours: str, parts: Sequence[str], size: int) -> Iterator[TensorMap]:
    """Projections of one input that are side by side here."""
    for entry in rules.linear(ours, size, size, True):
        load, store = entry.load, entry.store
        assert store is not None

        def join(arrays: Sequence[Array], one: Any = load) -> Array:
            joined: Array = np.concatenate([one([array]) for array in arrays], axis=-1)
            return joined

        def cut(array: Array, one: Any = store) -> Sequence[Array]:
            return [np.ascontiguousarray(one(part)[0]) for part in np.split(array, len(parts), axis=-1)]

        shape = (*entry.shape[:-1], len(parts) * size)
        sources = tuple(part + entry.name[len(ours) :] for part in parts)
        yield TensorMap(entry.name, shape, sources, entry.source_shapes * len(parts), join, cut, entry.dtype)


def _kernel(ours: str, public: str, shape: tuple[int, ...]) -> TensorMap:
    """A convolution over patches that do not overlap: one matrix."""
    values = shape[1] * shape[2] * shape[3]

    def load(arrays: Sequence[Array]) -> Array:
        matrix: Array = arrays[0].reshape(shape[0], values).T
        return matrix

    def store(array: Array) -> Sequence[Array]:
        return (np.ascontiguousarray(array.T).reshape(shape),)

    return TensorMap(ours, (values, shape[0]), (public,), (shape,), load, store)
