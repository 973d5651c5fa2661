"""A layer with further behavior and the same weights: how a strategy or an adapter changes what a built model computes.

Nothing is patched: :func:`derived` makes a new layer, of a class that has the methods of ``behavior`` before those of the
layer's own, and :func:`replaced` puts it into the model, where all parameters keep their names.
"""

from __future__ import annotations

from typing import Any, TypeVar

from paddle import nn

Behavior = TypeVar("Behavior")


def derived(layer: nn.Layer, behavior: type[Behavior], **attributes: Any) -> Behavior:
    """A layer that holds what ``layer`` holds (the same parameters, buffers, sublayers and hooks) and computes as
    ``behavior`` says, whose methods may call ``super()``'s. The layer itself stays as it is; copies keep the behavior.

    Args:
        attributes: set on the new layer.
    """
    kind: Any = type(f"{behavior.__name__}{type(layer).__name__}", (behavior, type(layer)), {})
    made: Behavior = kind.__new__(kind)
    vars(made).update(vars(layer))
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def replaced(model: nn.Layer, name: str, layer: nn.Layer) -> nn.Layer:
    """``model`` with ``layer`` under ``name`` (dots between levels); for ``""`` it is ``layer`` itself."""
    if not name:
        return layer
    parent, _, own = name.rpartition(".")
    sublayer(model, parent).add_sublayer(own, layer)
    return model


def sublayer(model: nn.Layer, name: str) -> nn.Layer:
    """The layer under ``name``; the model for ``""``. Raises ``KeyError`` when there is none."""
    found = model
    for part in name.split(".") if name else ():
        found = dict(found.named_children())[part]
    return found


def child(layer: nn.Layer, name: str) -> Any:
    """The direct sublayer ``name``; None where there is none."""
    return dict(layer.named_children()).get(name)
