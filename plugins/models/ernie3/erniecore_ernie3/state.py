"""Names of the weights in checkpoints and ours. numpy only.

One layout, ``pt``: our names, matrices [out, in] as in every Hugging Face directory. ERNIE 3.0 itself was never published; the
students that are open under its name have another architecture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from erniecore_ernie45.state import Rules

from erniecore.api import CheckpointError
from erniecore.api.model import TensorMap
from erniecore_ernie3.architecture import GENERATION, UNDERSTANDING, Architecture, Block
from erniecore_ernie3.orders import num_orders

EMBEDDING = "model.embed_tokens.weight"


class Ernie3StateAdapter:
    """Every weight under one name, whatever modules there are; see ``erniecore.api.model.StateAdapter``."""

    def __init__(self, arch: Architecture) -> None:
        self.arch = arch

    def layout_of(self, names: Sequence[str]) -> str:
        """Raises ``CheckpointError`` when the names are not of this model."""
        if EMBEDDING in names and any(name.startswith(f"{GENERATION}.") for name in names):
            return "pt"
        found = ", ".join(sorted(names)[:3])
        raise CheckpointError("not an ERNIE 3.0 checkpoint", found=found, expected=f"{EMBEDDING} and {GENERATION}.norm")

    def maps(self, layout: str, names: Sequence[str] = ()) -> Sequence[TensorMap]:
        """Raises ``CheckpointError`` for another layout than ``pt``."""
        if layout != "pt":
            raise CheckpointError("unknown layout", found=layout, expected="pt")
        rules, arch = Rules("pt", "model.", reading=bool(names)), self.arch
        shared = [rules.same(EMBEDDING, (arch.vocab_size, arch.hidden_size))]
        for index in range(arch.num_universal_layers):
            shared += _layer(rules, f"model.layers.{index}.", arch.universal)
        understanding = [
            # a token of a text that is generated passes none of it
            replace(one, active_share=0.0)
            for one in (*_module(rules, UNDERSTANDING, arch), *_heads(rules, arch))
            if arch.understands
        ]
        return [*shared, *_module(rules, GENERATION, arch), *understanding]

    def ignored(self, name: str) -> bool:
        """A model for generation alone leaves the other module of a full checkpoint alone; nothing else is ignored."""
        return not self.arch.understands and name.startswith((f"{UNDERSTANDING}.", "heads."))


def _module(rules: Rules, name: str, arch: Architecture) -> Iterator[TensorMap]:
    if arch.projects:
        yield from rules.linear(f"{name}.in_proj", arch.hidden_size, arch.task.hidden, True)
    for index in range(arch.num_task_layers):
        yield from _layer(rules, f"{name}.layers.{index}.", arch.task)
    yield from _norm(rules, f"{name}.norm", arch.task.hidden)
    if arch.projects:
        yield from rules.linear(f"{name}.out_proj", arch.task.hidden, arch.hidden_size, True)


def _layer(rules: Rules, name: str, block: Block) -> Iterator[TensorMap]:
    yield from _norm(rules, f"{name}input_layernorm", block.hidden)
    for projection in ("q_proj", "k_proj", "v_proj", "o_proj"):
        yield from rules.linear(f"{name}self_attn.{projection}", block.hidden, block.hidden, True)
    yield from _norm(rules, f"{name}post_attention_layernorm", block.hidden)
    yield from rules.linear(f"{name}mlp.up_proj", block.hidden, block.mlp, True)
    yield from rules.linear(f"{name}mlp.down_proj", block.mlp, block.hidden, True)


def _norm(rules: Rules, name: str, size: int) -> Iterator[TensorMap]:
    yield rules.same(f"{name}.weight", (size,))
    yield rules.same(f"{name}.bias", (size,))


def _heads(rules: Rules, arch: Architecture) -> Iterator[TensorMap]:
    sizes = {"reorder": num_orders(arch.max_segments), "distance": 3}
    if arch.num_labels:
        sizes["labels"] = arch.num_labels
    for name, size in sizes.items():
        yield from rules.linear(f"heads.{name}", arch.hidden_size, size, True)
