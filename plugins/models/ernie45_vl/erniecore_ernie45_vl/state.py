"""Public checkpoint names of the vision-language model and ours. numpy only.

Files keep the experts of text and vision in one list, text first, and both routers as [hidden, experts] in every layout.
The tower's names start with ``vision_model.``, in files of some libraries with ``model.vision_model.``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from erniecore_ernie45.state import Rules
from erniecore_ernie45_moe.state import Ernie45MoeStateAdapter, Stack

from erniecore.api.model import TensorMap
from erniecore_ernie45_vl.architecture import VlArchitecture

TOWER = "vision_model."


class Ernie45VlStateAdapter(Ernie45MoeStateAdapter):
    """Implements ``erniecore.api.StateAdapter``. A text token passes nothing of the vision part, which is not trained by
    runs."""

    def __init__(self, arch: VlArchitecture) -> None:
        super().__init__(arch)
        self.vl = arch

    def maps(self, layout: str, names: Sequence[str] = ()) -> Sequence[TensorMap]:
        before = next((name[: name.index(TOWER)] for name in names if TOWER in name), "")
        maps = super().maps(layout, names)
        if not before:
            return maps
        return [_under(before, entry) if entry.name.startswith(TOWER) else entry for entry in maps]

    def inside(self, rules: Rules) -> Iterator[TensorMap]:
        """Tensor maps of the decoder layers, then of vision tower and resampler."""
        yield from super().inside(rules)
        yield from map(frozen, self.resampler(rules))
        yield from map(frozen, self.tower(rules))

    def routing(self, rules: Rules, mlp: str) -> Iterator[TensorMap]:
        """Both routers, their selection bias, both kinds of experts."""
        arch, size = self.vl, (self.vl.hidden_size, self.vl.num_experts)
        yield rules.same(f"{mlp}gate.weight", size, "float32")
        yield frozen(rules.same(f"{mlp}gate.weight_1", size, "float32"))
        statistics = rules.same(f"{mlp}moe_statics.e_score_correction_bias", (2, arch.num_experts), "float32")
        yield replace(statistics, trained=False)
        public = f"{mlp}experts."
        yield from self.experts(rules, Stack(public, public, 0, arch.expert_size))
        vision = Stack(f"{mlp}vision_experts.", public, arch.num_experts, arch.vision_expert_size)
        yield from map(frozen, self.experts(rules, vision))

    def resampler(self, rules: Rules) -> Iterator[TensorMap]:
        """Between the tower and the text part."""
        name, width = "model.resampler_model.", self.vl.vision.merged_size
        for step, num_in in (("spatial_linear", width), ("temporal_linear", 2 * width)):
            yield from rules.linear(f"{name}{step}.0", num_in, width, True)
            yield from rules.linear(f"{name}{step}.2", width, width, True)
            yield from _norm(rules, f"{name}{step}.3", width)
        yield from rules.linear(f"{name}mlp", width, self.vl.hidden_size, True)
        yield rules.same(f"{name}after_norm.weight", (self.vl.hidden_size,))

    def tower(self, rules: Rules) -> Iterator[TensorMap]:
        """Tensor maps of the vision tower."""
        vision = self.vl.vision
        size, wide = vision.hidden_size, vision.intermediate_size
        yield rules.matrix(f"{TOWER}patch_embed.proj.weight", vision.patch_values, size)
        for index in range(vision.depth):
            block = f"{TOWER}blocks.{index}."
            yield from _norm(rules, f"{block}norm1", size)
            yield from _norm(rules, f"{block}norm2", size)
            yield from rules.linear(f"{block}attn.qkv", size, 3 * size, True)
            yield from rules.linear(f"{block}attn.proj", size, size, True)
            yield from rules.linear(f"{block}mlp.fc1", size, wide, True)
            yield from rules.linear(f"{block}mlp.fc2", wide, size, True)
        yield from _norm(rules, f"{TOWER}ln", size)


def frozen(entry: TensorMap) -> TensorMap:
    """Of the vision part."""
    return replace(entry, trained=False, active_share=0.0)


def _norm(rules: Rules, name: str, size: int) -> Iterator[TensorMap]:
    yield rules.same(f"{name}.weight", (size,))
    yield rules.same(f"{name}.bias", (size,))


def _under(before: str, entry: TensorMap) -> TensorMap:
    return replace(entry, sources=tuple(before + source for source in entry.sources))
