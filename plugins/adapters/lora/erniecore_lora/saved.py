"""A saved adapter, whoever wrote it: what it says of itself, and its factors by public module name. numpy, no paddle.

The two layouts are in ``peft.py`` (read and written) and ``erniekit.py`` (read).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from erniecore.api import CheckpointError, nearest
from erniecore.api.files import read_object
from erniecore.api.patterns import PatternMatcher, PatternTimeout
from erniecore_lora.config import Variant
from erniecore_lora.sizes import Size
from erniecore_lora.targets import Target

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float32]

#: for all patterns of a file: thousands of modules times as many patterns take seconds
SECONDS = 30.0


@dataclass(frozen=True)
class Description:
    """What the JSON file of an adapter directory says.

    Attributes:
        file: the JSON file. layout: ``peft`` or ``erniekit``. base: the model that it was trained on, as written there.
        alpha: of modules that no pattern names. alpha_pattern: regular expression over the end of a name -> alpha.
    """

    file: Path
    layout: str
    base: str
    variant: Variant
    alpha: float
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    _matcher: PatternMatcher = field(default_factory=lambda: PatternMatcher(SECONDS), repr=False, compare=False)

    def kind(self) -> str:
        """The adapter plugin that it belongs to, in words."""
        words = ["rslora"] * self.variant.rank_stabilized + ["dora"] * self.variant.magnitudes
        return " and ".join(words) or "lora"

    def alpha_of(self, module: str) -> float:
        """alpha of one module, which a pattern may name by its ``weight``."""
        for pattern, alpha in self.alpha_pattern.items():
            if any(self._matches(rf"(.*\.)?({pattern})", name) for name in (module, f"{module}.weight")):
                return float(alpha)
        return self.alpha

    def _matches(self, pattern: str, name: str) -> bool:
        try:
            return self._matcher.matches(pattern, name)
        except (PatternTimeout, ValueError) as error:
            raise CheckpointError(
                "a pattern of alpha_pattern takes too long"
                if isinstance(error, PatternTimeout)
                else "a pattern of alpha_pattern is no regular expression",
                where=str(self.file),
                found=str(error),
                expected="names of modules, or simple patterns of them",
                fix="write the names of the modules into alpha_pattern",
                code="ERN-K021",
            ) from None


class Factors(NamedTuple):
    """The update of one module: A [I, r], B [r, O], magnitude [O] or None; alpha where the description cannot tell."""

    a: Array
    b: Array
    magnitude: Array | None = None
    alpha: float | None = None


@dataclass(frozen=True)
class Saved:
    """An adapter that was read. ``modules``: public module name -> factors; ``head``: of a reward model, [H, 1]."""

    description: Description
    modules: Mapping[str, Factors]
    head: Array | None = None

    def sizes(self, known: Sequence[Target]) -> dict[Target, Size]:
        """The updates to make on a model with these targets.

        Raises:
            CheckpointError: modules that the model lacks, experts of one layer that differ, other shapes.
        """
        owners = {module: target for target in known for module in target.modules()}
        modules = self.separate(known)
        spare = [module for module in modules if module not in owners]
        if spare:
            close = nearest(spare[0], owners)
            raise self._fault(
                f"{len(spare)} of its modules are not in this model",
                spare[0],
                f"did you mean {close}?" if close else "",
            )
        used = {owners[module] for module in modules}
        return {target: self._size(target, modules) for target in known if target in used}

    def separate(self, known: Sequence[Target]) -> Mapping[str, Factors]:
        """Factors by public module; what the layout stores fused is taken apart, now that the shapes are known."""
        apart: Mapping[str, Factors] = _reader(self.description.layout).unfuse(self.description, self.modules, known)
        return apart

    @staticmethod
    def factors(target: Target, modules: Mapping[str, Factors]) -> Factors:
        """Those of a target; of experts stacked [E, I, r], [E, r, O], [E, O]."""
        parts = [modules[module] for module in target.modules()]
        if not target.num_experts:
            return parts[0]
        lengths = [p.magnitude for p in parts if p.magnitude is not None]
        magnitude = np.stack(lengths) if lengths else None
        return Factors(np.stack([p.a for p in parts]), np.stack([p.b for p in parts]), magnitude)

    def _size(self, target: Target, modules: Mapping[str, Factors]) -> Size:
        num_in, num_out = target.shape[-2:]
        sizes = set()
        for module in target.modules():
            if module not in modules:
                raise self._fault("an expert of this layer has no update, others have", module)
            a, b, magnitude, alpha = modules[module]
            rank = a.shape[1]
            if a.shape != (num_in, rank) or b.shape != (rank, num_out):
                raise self._fault(
                    f"an update of {a.shape[0]} inputs and {b.shape[-1]} outputs does not fit {num_in} and {num_out}",
                    module,
                )
            if (magnitude is not None) != self.description.variant.magnitudes:
                raise self._fault("magnitudes and use_dora do not agree", module)
            alpha = self.description.alpha_of(module) if alpha is None else alpha
            sizes.add(Size(rank, alpha, self.description.variant.rank_stabilized))
        if len(sizes) > 1:
            raise self._fault("experts of one layer with different ranks or alphas are not supported", target.name)
        return sizes.pop()

    def _fault(self, message: str, module: str, fix: str = "") -> CheckpointError:
        where = f"{self.description.file.parent}: {module}"
        return CheckpointError(f"the adapter does not fit: {message}", where=where, fix=fix, code="ERN-K004")


#: modules of this package that read a layout
LAYOUTS = ("peft", "erniekit")


def _reader(layout: str) -> Any:
    return import_module(f"erniecore_lora.{layout}")


def describe(directory: str | Path) -> Description | None:
    """What kind of adapter a directory holds; None if it is none of ours. Raises ``CheckpointError`` when damaged."""
    for layout in LAYOUTS:
        reader = _reader(layout)
        file = Path(directory) / reader.CONFIG
        found: Description | None = reader.describe(file, read_json(file)) if file.is_file() else None
        if found is not None:
            return found
    return None


def open_saved(directory: str | Path) -> Saved:
    """Read an adapter.

    Raises:
        CheckpointError: no adapter there, damaged files, or a feature that this package does not compute.
    """
    found = describe(directory)
    if found is None:
        raise CheckpointError(
            "this directory holds no low-rank adapter",
            where=str(directory),
            expected=" or ".join(_reader(layout).CONFIG for layout in LAYOUTS),
            fix="name a run's adapter/ directory or one that PEFT or ERNIEKit wrote",
        )
    modules = _reader(found.layout).read(found)
    if not modules:
        raise CheckpointError("this adapter changes nothing", where=str(directory))
    return Saved(found, modules, _reader(found.layout).read_whole(found))


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object. Raises ``CheckpointError``."""
    return read_object(file, CheckpointError, code="ERN-K021")


def refuse(file: Path, content: Mapping[str, Any], harmless: Mapping[str, Sequence[Any]]) -> None:
    """Raise ``CheckpointError`` for a key whose value asks for something that is not computed here."""
    for key, allowed in harmless.items():
        if key in content and content[key] and content[key] not in allowed:
            raise CheckpointError(
                "this adapter uses a feature that is not supported",
                where=f"{file}: {key}",
                found=str(content[key])[:80],
                expected=" or ".join(map(str, allowed)) or "nothing",
            )


def pair_up(where: Path, parts: Mapping[str, Mapping[str, Array]]) -> dict[str, Factors]:
    """Factors from ``{module: {"a": …, "b": …, "magnitude": …}}``. Raises ``CheckpointError`` for half a pair."""
    for module, found in parts.items():
        if not {"a", "b"} <= set(found):
            missing = "A" if "a" not in found else "B"
            raise CheckpointError(f"this module has no {missing}", where=f"{where}: {module}", code="ERN-K002")
        if found["a"].ndim != 2 or found["b"].ndim != 2 or found["a"].shape[1] != found["b"].shape[0]:
            shapes = f"A {list(found['a'].shape)}, B {list(found['b'].shape)}, as [in, r] and [r, out]"
            raise CheckpointError(
                "A and B do not fit each other", where=f"{where}: {module}", found=shapes, code="ERN-K002"
            )
    return {module: Factors(found["a"], found["b"], found.get("magnitude")) for module, found in parts.items()}
