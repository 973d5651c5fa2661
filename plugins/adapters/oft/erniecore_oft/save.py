"""Writing the adapter of a model in PEFT's layout, which ``saved.py`` reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from erniecore_lora import linear
from erniecore_lora.save import as_array
from paddle import nn  # noqa: TID253

from erniecore_oft.saved import PART

if TYPE_CHECKING:
    from erniecore_lora.saved import Array

    from erniecore_oft.layers import Rotation


#: terms that PEFT's settings have where the series is not used
_UNUSED = 5
#: the first PEFT with this form of the series; older ones read such files with a warning
_PEFT = "0.18.0"


def save(model: nn.Layer, target: Path, *, base: str = "") -> Path:
    """Write the active adapter into the existing directory ``target``; float32. Raises ``UsageError``: there is none."""
    blocks = [rotation.blocks for rotation in linear.active_changes(model).values()]
    some, one_size = blocks[0], len({one.size for one in blocks}) == 1
    settings = {
        "peft_type": "OFT",
        "peft_version": _PEFT,
        # files say either how large blocks are or how many a layer has; the second is of adapters that PEFT made so
        "r": 0 if one_size else some.number,
        "oft_block_size": some.size if one_size else 0,
        "use_cayley_neumann": some.terms > 0,
        "num_cayley_neumann_terms": some.terms or _UNUSED,
        "module_dropout": 0.0,
        "coft": False,
        "eps": 6e-5,
        "block_share": False,
    }
    return linear.write(model, target, base, settings, _parts)


def _parts(change: Rotation) -> dict[str, Array]:
    return {PART: as_array(change.skew)}
