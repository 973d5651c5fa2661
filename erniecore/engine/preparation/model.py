"""The model of a run from names and shapes alone: its architecture, how it is sharded, how many parameters it has. No paddle,
no weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from erniecore.capabilities import MethodCapability
from erniecore.config.packed_base import check_packed_as
from erniecore.engine.config_hash import matches
from erniecore.engine.context import ModelDescription
from erniecore.engine.models.config_json import has_score
from erniecore.engine.optimizers.roles import trained_specs
from erniecore.engine.preparation.head import HeadChoice
from erniecore.engine.preparation.plan import count_parameters
from erniecore.errors import ConfigError, did_you_mean
from erniecore.types.model import Layout, StateAdapter, TensorMap
from erniecore.types.planning import OptimizerState, Parameters
from erniecore.types.records import Json
from erniecore.types.run import Cluster, ParallelPlan

if TYPE_CHECKING:
    from erniecore.config.settings import RunSettings
    from erniecore.host import Host
    from erniecore.plugin import Plugin
    from erniecore.sections import AdapterConfig, ModelConfig, ParallelConfig, QuantizerConfig


def read_model(
    host: Host, model: ModelConfig, method: Plugin, quantizer: QuantizerConfig | None = None
) -> tuple[Json, StateAdapter, HeadChoice]:
    """Architecture and names of the weights, with a score head if ``method`` trains one.

    Raises:
        CheckpointError: config.json cannot be read. ConfigError: its weights are packed otherwise than ``quantizer`` says.
    """
    architecture: Json = host.hook.ernie_read_architecture(config=model)
    check_packed_as(architecture, quantizer)
    head = HeadChoice(stored=has_score(architecture), trained=MethodCapability.SCORE_HEAD in method.capabilities)
    adapter: StateAdapter = host.hook.ernie_state_adapter(architecture=architecture)
    return *head.described(architecture, adapter), head


def plan_parallel(host: Host, parallel: ParallelConfig, cluster: Cluster, architecture: Json) -> ParallelPlan:
    """The strategy's plan. Raises ``ConfigError`` for what it cannot divide."""
    plan: ParallelPlan = host.hook.ernie_plan_parallel(
        config=parallel, cluster=cluster, shape=host.hook.ernie_decoder_shape(architecture=architecture)
    )
    return plan


def model_layout(
    host: Host, architecture: Json, head: HeadChoice, adapter: AdapterConfig | None, name: str, plan: ParallelPlan
) -> Layout:
    """The layout of the model with its score head, and of its adapter where weights are sharded.

    Args:
        adapter, name: settings and name of the run's adapter, if it has one.
    Raises:
        ConfigError: the adapter cannot be sharded.
    """
    layout = head.styled(host.hook.ernie_model_layout(architecture=architecture))
    axes = [axis for axis in ("tensor", "expert") if plan.degrees.get(axis, 1) > 1]
    if adapter is None or not axes:
        return layout
    extended: Layout | None = host.hook.ernie_adapter_layout(config=adapter, layout=layout)
    if extended is None:
        raise ConfigError.at(f"parallel.{axes[0]}", f"adapter {name} does not say how it is cut")
    return extended


def count_model(
    host: Host, model: ModelDescription, settings: RunSettings
) -> tuple[Parameters, tuple[OptimizerState, ...]]:
    """Parameters of the run, and what the optimizer keeps for those that are trained: under an adapter, a score head is
    trained with it."""
    adapter = settings.adapter
    # under an adapter, the head is counted with what the adapter trains
    apart = adapter is not None and model.head.trained
    maps = trained_maps((model.head.without_head(model.state_adapter) if apart else model.state_adapter), settings)
    shapes = model.head.adapter_shapes(adapter_shapes(host, adapter, maps), model.architecture)
    packed = packed_bytes(host, settings.quantizer, maps)
    trained = trained_specs(maps, shapes, packed, settings.train.precision, model.layout)
    sizes = host.hook.ernie_optimizer_bytes(config=settings.optimizer, parameters=trained)
    state = tuple(OptimizerState(spec, size) for spec, size in zip(trained, sizes, strict=True))
    return count_parameters(maps, shapes, packed), state


def trained_maps(adapter: StateAdapter, settings: RunSettings) -> list[TensorMap]:
    """The public tensors, of which those are ``trained`` that the settings choose.

    Raises:
        ConfigError: a pattern of ``train.freeze`` fits no parameter that would be trained, or all are frozen.
    """
    model, patterns = settings.model, settings.train.freeze
    maps = [replace(entry, trained=model.trains(entry.name, entry.trained)) for entry in adapter.maps("pt")]
    names = [entry.name for entry in maps if entry.trained]
    if patterns and settings.adapter is not None:
        message = "an adapter freezes the whole model; adapter.targets says what it trains. Leave this out"
        raise ConfigError.at("train.freeze", message)
    for pattern in patterns:
        if not any(matches(name, [pattern]) for name in names):
            hint = did_you_mean(pattern, names, f"their names are such as {', '.join(names[:3])}")
            raise ConfigError.at("train.freeze", f"no trained parameter fits {pattern!r}; {hint}")
    found = [replace(entry, trained=entry.trained and not matches(entry.name, patterns)) for entry in maps]
    if patterns and not any(entry.trained for entry in found):
        raise ConfigError.at("train.freeze", "all parameters are frozen, and nothing is left to train")
    return found


def adapter_shapes(
    host: Host, adapter: AdapterConfig | None, maps: Sequence[TensorMap]
) -> Mapping[str, Sequence[int]] | None:
    """Name -> shape of what the run's adapter trains; None without one, nothing if its plugin does not say."""
    if adapter is None:
        return None
    shapes = {entry.name: entry.shape for entry in maps}
    found: Mapping[str, Sequence[int]] | None = host.hook.ernie_adapter_shapes(config=adapter, shapes=shapes)
    return found or {}


def packed_bytes(host: Host, quantizer: QuantizerConfig | None, maps: Sequence[TensorMap]) -> Mapping[str, int]:
    """Name -> bytes of what the run's quantizer packs; empty without one, or if its plugin does not say."""
    if quantizer is None:
        return {}
    shapes = {entry.name: entry.shape for entry in maps}
    found: Mapping[str, int] | None = host.hook.ernie_packed_bytes(config=quantizer, shapes=shapes)
    return found or {}
