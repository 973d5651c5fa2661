"""What every axis does to a built model in place: give a layer methods before its own, give a tensor other memory, and ask
the layout for the style of a parameter. What for is in the axes' own modules.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from paddle import Tensor  # noqa: TID253

from erniecore.api import Layout


def mix(layer: Any, behaviour: type, **attributes: Any) -> None:
    """Give one layer the methods of ``behaviour`` before its own, and ``attributes``; copies of the layer keep them."""
    layer.__class__ = type(f"{behaviour.__name__}{type(layer).__name__}", (behaviour, type(layer)), {})
    for name, value in attributes.items():
        setattr(layer, name, value)


def share_memory(source: Tensor, target: Tensor) -> None:
    """Give ``target`` the memory and the shape of ``source``: whoever holds it holds that."""
    target.get_tensor()._share_data_with(source.get_tensor())


def style_of(name: str, layout: Layout) -> str | None:
    """The style of a parameter: that of the first rule which matches."""
    return next((style for pattern, style in layout.rules if fnmatchcase(name, pattern)), None)
