"""Reading the directories of PEFT that ``linear.py`` writes. Tensors of a layer are ``base_model.model.<layer>.<part>``, those
of all layers together ``base_model.<part>``. numpy, no paddle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.api import CheckpointError, nearest
from erniecore.api.tensors import read_tensors
from erniecore_lora import peft
from erniecore_lora.saved import read_json, refuse
from erniecore_lora.targets import Target

if TYPE_CHECKING:
    from erniecore_lora.saved import Array

#: keys of every adapter_config.json -> values that change nothing; a false value never does
HARMLESS: dict[str, Sequence[Any]] = {
    "bias": ("none",),
    "modules_to_save": (["classifier", "score"], ["score"]),
    "fan_in_fan_out": (),
    "trainable_token_indices": (),
}


@dataclass(frozen=True)
class SavedLinear:
    """An adapter directory that was read.

    Attributes:
        file: adapter_config.json. config: what it says. modules: layer -> part -> array.
        shared: part -> array of all layers together. head: of a reward model, [H, 1].
    """

    file: Path
    config: Mapping[str, Any]
    modules: Mapping[str, Mapping[str, Array]]
    shared: Mapping[str, Array] = field(default_factory=dict)
    head: Array | None = None

    def number(self, key: str, kind: Callable[[Any], float] = int) -> Any:
        """A number of the settings. Raises ``CheckpointError``."""
        try:
            return kind(self.config[key])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CheckpointError(f"{key} is not usable", where=str(self.file), code="ERN-K021") from error

    def targets(self, known: Sequence[Target]) -> dict[Target, Mapping[str, Array]]:
        """The layers of a model that the adapter changes, in the model's order. Raises ``CheckpointError`` for layers that the
        model lacks."""
        linear = {target.layer: target for target in known if not target.num_experts}
        spare = [name for name in self.modules if name not in linear]
        if spare:
            close = nearest(spare[0], linear)
            hint = f"did you mean {close}?" if close else ""
            raise self.fault(f"{len(spare)} of its modules are not linear layers of this model", spare[0], hint)
        return {target: self.modules[name] for name, target in linear.items() if name in self.modules}

    def fault(self, message: str, module: str, fix: str = "") -> CheckpointError:
        """The error of an adapter that does not fit."""
        where = f"{self.file.parent}: {module}"
        return CheckpointError(f"the adapter does not fit: {message}", where=where, fix=fix, code="ERN-K004")


def read(
    directory: str | Path,
    peft_type: str,
    parts: Sequence[str],
    shared: Sequence[str] = (),
    harmless: Mapping[str, Sequence[Any]] | None = None,
) -> SavedLinear:
    """Read an adapter directory, each of whose layers has all ``parts``.

    Raises:
        CheckpointError: no such adapter there, damaged files, or a feature that is not computed here.
    """
    file = Path(directory) / peft.CONFIG
    config = read_json(file) if file.is_file() else {}
    if config.get("peft_type") != peft_type:
        raise CheckpointError(
            f"this directory holds no {peft_type} adapter",
            where=str(directory),
            found=str(config.get("peft_type") or f"no {peft.CONFIG}"),
            fix="name a run's adapter/ directory or one that PEFT wrote, and the adapter that it is of",
        )
    refuse(file, config, {**HARMLESS, **(harmless or {})})
    path = file.with_name(peft.WEIGHTS)
    modules: dict[str, dict[str, Array]] = {}
    whole: dict[str, Array] = {}
    for name, array in read_tensors(path).items():
        module, part = _split(name, parts)
        if module:
            modules.setdefault(module, {})[part] = array
        elif name.removeprefix("base_model.") in shared:
            whole[name.removeprefix("base_model.")] = array
        elif name != peft.PREFIX + peft.WHOLE:
            raise CheckpointError(f"this tensor is no part of a {peft_type} adapter", where=f"{path}: {name}")
    for module, found in modules.items():
        if lost := [part for part in parts if part not in found]:
            raise CheckpointError(f"this module has no {lost[0]}", where=f"{path}: {module}", code="ERN-K002")
    if not modules:
        raise CheckpointError("this adapter changes nothing", where=str(directory))
    return SavedLinear(file, config, modules, whole, peft.read_head(path))


def _split(name: str, parts: Sequence[str]) -> tuple[str, str]:
    """(layer, part) of a tensor of a layer; empty for others."""
    for part in parts:
        if name.startswith(peft.PREFIX) and name.endswith(f".{part}"):
            return name[len(peft.PREFIX) : -len(part) - 1], part
    return "", ""
