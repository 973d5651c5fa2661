"""What a run will be before it starts: parameters, tokens, the exact part of its memory, disk. From names and shapes
alone: no paddle, no weights, no data. Activations are not estimated here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from erniecore.config.core import TrainSection
from erniecore.types.model import TensorMap
from erniecore.types.optimizer import StateBytes
from erniecore.types.planning import BYTES, Parameters, Plan


def count_parameters(
    maps: Iterable[TensorMap],
    adapter: Mapping[str, Sequence[int]] | None = None,
    packed: Mapping[str, int] | None = None,
) -> Parameters:
    """Counts from what the state adapter declares of each tensor.

    ``adapter``: name -> shape of what an adapter adds and trains while the base is frozen; None without one. A token
    passes as large a share of an addition as of the layer that it is in. ``packed``: name -> bytes of what a quantizer
    packs.
    """
    packed = packed or {}
    total = trained = low = num_packed = 0
    active, fractions = 0.0, {"": 1.0}
    for entry in maps:
        elements = prod(entry.shape)
        total += elements
        trained += elements if entry.trained and entry.name not in packed else 0
        low += 0 if entry.dtype == "float32" or entry.name in packed else elements
        num_packed += elements if entry.name in packed else 0
        active += elements * entry.active_share
        fractions[entry.name.rpartition(".")[0]] = entry.active_share
    size = sum(packed.values())
    if adapter is None:
        return Parameters(total, trained, round(active), low, False, num_packed, size)
    added = {name: prod(shape) for name, shape in adapter.items()}
    for name, elements in added.items():
        owner = max((layer for layer in fractions if name.startswith(f"{layer}.") or not layer), key=len)
        active += elements * fractions[owner]
    trained = sum(added.values())
    return Parameters(total + trained, trained, round(active), low + trained, True, num_packed, size)


def estimate(
    parameters: Parameters,
    train: TrainSection,
    names: Mapping[str, str],
    *,
    state: Sequence[StateBytes],
    offload: bool = False,
    name: str,
    rows_per_step: int,
    max_seq_len: int,
    keep: int,
    reference: bool = False,
    moving: bool = False,
) -> Plan:
    """The plan of a run. ``names``: plugin name by kind; ``rows_per_step``: of all ranks together, each of at most
    ``max_seq_len`` tokens; ``keep``: checkpoints that are kept; ``reference``: the method keeps a frozen copy of the model;
    ``moving``: which follows the policy, so that checkpoints hold it too; ``state``: what the optimizer keeps for each
    trained parameter; ``offload``: in host memory. A checkpoint holds all weights, or under an adapter those that are
    trained, which are as many bytes as their gradients.
    """
    low = parameters.low if train.precision != "float32" else 0
    rest = parameters.total - parameters.packed - low
    weights = low * BYTES[train.precision] + rest * 4 + parameters.packed_bytes
    trained_low = min(low, parameters.trainable)
    gradients = trained_low * BYTES[train.precision] + (parameters.trainable - trained_low) * 4
    kept, masters = sum(one.state for one in state), sum(one.master for one in state)
    ema = 4 * parameters.trainable if train.ema else 0
    copied = (gradients if parameters.adapted else weights) if reference else 0  # an adapter's copy shares the base
    host = kept + masters if offload else 0
    saved = (gradients if parameters.adapted else weights) + (copied if moving else 0)
    return Plan(
        name=name,
        model=names["model"],
        method=names["method"],
        device=names["device"],
        precision=train.precision,
        parameters=parameters,
        tokens_per_step=rows_per_step * max_seq_len,
        max_steps=train.max_steps,
        weights=weights,
        reference=copied,
        gradients=gradients,
        optimizer_state=kept,
        master_weights=masters,
        ema=ema,
        memory=weights + copied + gradients + kept + masters + ema - host,
        checkpoint=saved + kept + masters + ema,
        keep=keep,
        host_memory=host,
    )
