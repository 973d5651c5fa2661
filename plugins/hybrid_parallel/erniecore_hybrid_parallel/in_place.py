"""What every axis does to a built model in place: give a layer methods before its own. What for is in the axes' own modules."""

from __future__ import annotations

from typing import Any


def mix(layer: Any, behaviour: type, **attributes: Any) -> None:
    """Give one layer the methods of ``behaviour`` before its own, and ``attributes``; copies of the layer keep them."""
    layer.__class__ = type(f"{behaviour.__name__}{type(layer).__name__}", (behaviour, type(layer)), {})
    for name, value in attributes.items():
        setattr(layer, name, value)
