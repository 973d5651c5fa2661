"""Adapters on a model: adding, switching, leaving out, merging, taking off. Files are in ``peft.py``.

An adapted model has the sublayers of its base with some of them replaced, and is a :class:`AdapterModel`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from paddle import nn  # noqa: TID253

from erniecore.api import ConfigError, UsageError, nearest
from erniecore.api.adapter import PackedLayer
from erniecore.api.layers import derived
from erniecore_lora.layers import Adapted, wrapper_of
from erniecore_lora.lowrank import LowRank, WeightChange
from erniecore_lora.sizes import Size
from erniecore_lora.targets import Target, of_shapes

#: the adapter that a run trains
DEFAULT = "default"
Change = TypeVar("Change", bound=WeightChange)
#: layer, parameter -> the class that adapts it, None if none does
WrapperOf = Callable[[nn.Layer, str], Callable[[nn.Layer], Adapted] | None]


def targets_of(model: nn.Layer) -> list[Target]:
    """Everything in ``model`` that can be adapted."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, layer in model.named_sublayers(include_self=True):
        own = {leaf: tuple(p.shape) for leaf, p in layer.named_parameters(include_sublayers=False)}
        base = layer.inner[0] if isinstance(layer, Adapted) else layer
        packed = base.packed_shapes() if isinstance(base, PackedLayer) else {}
        shapes |= {f"{name}.{leaf}": tuple(shape) for leaf, shape in {**own, **packed}.items()}
    return of_shapes(shapes)


def freeze(model: nn.Layer) -> None:
    """Nothing of ``model`` is trained from here on."""
    for parameter in model.parameters():
        parameter.stop_gradient = True


def add(model: nn.Layer, adapter: str, sizes: Mapping[Target, Size]) -> dict[Target, LowRank]:
    """Updates of zero on the given targets, as ``adapter``; the adapter becomes the active one.

    Raises:
        ConfigError: a target that is no linear layer. UsageError: the model has an adapter of that name.
    """
    return attach(model, adapter, sizes, wrapper_of, lambda target, dtype: LowRank(target.shape, dtype, sizes[target]))


def attach(
    model: nn.Layer,
    adapter: str,
    targets: Iterable[Target],
    wrapper_of: WrapperOf,
    make: Callable[[Target, Any], Change],
) -> dict[Target, Change]:
    """What ``make`` returns for a target and the dtype of its layer, on each target, as ``adapter``, which becomes active.

    Raises:
        ConfigError: a target that ``wrapper_of`` has no class for. UsageError: the model has an adapter of that name, or of
            another kind.
    """
    if not adapter or "." in adapter or adapter in adapters(model):
        raise UsageError("an adapter needs a new name without dots", found=adapter)
    layers = dict(model.named_sublayers(include_self=True))
    made: dict[Target, Change] = {}
    for target in targets:
        layer = layers[target.layer] = _adapted(layers, target, wrapper_of)
        made[target] = make(target, layer.dtype_of(target.parameter))
        layer.attach(adapter, target.parameter, made[target])
    switch(model, adapter)
    return made


def _adapted(layers: Mapping[str, nn.Layer], target: Target, wrapper_of: WrapperOf) -> Adapted:
    layer = layers[target.layer]
    wrapper = wrapper_of(layer.inner[0] if isinstance(layer, Adapted) else layer, target.parameter)
    if isinstance(layer, Adapted):
        if not (isinstance(wrapper, type) and isinstance(layer, wrapper)):
            raise UsageError(
                "adapters of different kinds do not go on one model",
                where=target.name,
                found=layer.place,
                fix="merge the first one into the base, or load each onto a base of its own",
            )
        return layer
    if wrapper is None:
        raise ConfigError.at("adapter.targets", f"{target.name} is a {type(layer).__name__}, not a linear layer")
    above, _, name = target.layer.rpartition(".")
    wrapped = wrapper(layer)
    _replace(layers[above], name, wrapped)
    return wrapped


def _replace(parent: nn.Layer, name: str, layer: nn.Layer) -> None:
    """Also where the parent is a list of layers; the place among its siblings stays."""
    parent.add_sublayer(name, layer)


def wrapped(model: nn.Layer) -> dict[str, Adapted]:
    """Name -> adapted layer."""
    return {name: layer for name, layer in model.named_sublayers() if isinstance(layer, Adapted)}


def updates(model: nn.Layer, adapter: str) -> dict[Target, Any]:
    """The updates of one adapter. Raises ``UsageError`` for a name that the model has not."""
    _known(model, adapter)
    return {
        Target(name, parameter, layer.shape_of(parameter)): change
        for name, layer in wrapped(model).items()
        for parameter, change in layer.updates(adapter)
    }


def adapters(model: nn.Layer) -> list[str]:
    """Names of the adapters on ``model``."""
    return list(dict.fromkeys(name for layer in wrapped(model).values() for name in layer.adapters))


def active(model: nn.Layer) -> str | None:
    """The adapter in use; None: the base alone."""
    return next((layer.active for layer in wrapped(model).values()), None)


def switch(model: nn.Layer, adapter: str | None) -> None:
    """Use another adapter, or with None the base alone.

    Raises:
        UsageError: no such adapter, or one is merged into the weights.
    """
    if adapter is not None:
        _known(model, adapter)
    for layer in wrapped(model).values():
        if layer.kept and layer.active != adapter:
            raise UsageError("an adapter is merged into the weights", found=str(layer.active), fix="unmerge it first")
        layer.active = adapter


@contextmanager
def adapter_off(model: nn.Layer) -> Iterator[None]:
    """Within the block the model is its base: the reference of preference methods without a second copy."""
    before = active(model)
    switch(model, None)
    try:
        yield
    finally:
        switch(model, before)


def _each(model: nn.Layer, action: Callable[[Adapted], None]) -> None:
    for layer in wrapped(model).values():
        action(layer)


class AdapterModel:
    """What an adapted model can do; see ``erniecore.api.adapter.AdaptedModel`` and ``AdapterChoice``.

    Attributes:
        base: the model before it was adapted, in a tuple so that it is no sublayer; both have the same sublayers.
        lr_factors: pattern over parameter names -> factor of the learning rate.
        experts_left_out: stacks of routed experts that the settings name and this kind of adapter has no form for.
    """

    base: tuple[nn.Layer]
    training: bool
    lr_factors: Mapping[str, float]
    experts_left_out: int = 0

    def merge(self) -> None:
        """Put the active updates into the weights; again: nothing. Raises ``UsageError`` for packed weights."""
        _each(self, Adapted.merge)

    def unmerge(self) -> None:
        """Restore the weights, bit for bit."""
        _each(self, Adapted.unmerge)

    def unload(self) -> nn.Layer:
        """The base with its own layers, and with the weights as they are now: after :meth:`merge` the merged ones."""
        layers = dict(self.named_sublayers(include_self=True))  # type: ignore[attr-defined]
        for name, layer in wrapped(self).items():
            above, _, leaf = name.rpartition(".")
            _replace(layers[above], leaf, layer.inner[0])
        (base,) = self.base
        base.training = self.training
        return base

    def adapter_off(self) -> AbstractContextManager[None]:
        """Within the block the model is its base: the reference of preference methods without a second copy."""
        return adapter_off(self)

    def set_adapter(self, adapter: str | None) -> None:
        """Select the active adapter; see :func:`switch`."""
        switch(self, adapter)

    def adapter_names(self) -> list[str]:
        """Names of the adapters."""
        return adapters(self)


def adapted_model(
    model: nn.Layer, lr_factors: Mapping[str, float] | None = None, *, experts_left_out: int = 0
) -> nn.Layer:
    """``model``, whose layers were adapted by :func:`add`, as an :class:`AdapterModel`; one that is one stays the same object."""
    if not isinstance(model, AdapterModel):
        model = derived(model, AdapterModel, base=(model,), lr_factors=lr_factors or {})
    if lr_factors is not None:
        model.lr_factors = lr_factors
    model.experts_left_out = experts_left_out
    return model


def _known(model: nn.Layer, adapter: str) -> None:
    known: Iterable[str] = adapters(model)
    if adapter not in known:
        close = nearest(adapter, known)
        fix = f"did you mean {close}?" if close else f"adapters: {', '.join(known) or 'none'}"
        raise UsageError("this model has no adapter of that name", found=adapter, fix=fix)
