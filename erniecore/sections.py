"""Sections of the settings: the base class of all of them, and those of the plugins' sections by kind.

A section is frozen, refuses unknown keys and describes every field: the generated reference, ``ernie config explain`` and
the error messages are made from these descriptions. A field of a base class is a setting of every plugin of the kind. A
method is what the engine asks of a section, with an answer for plugins that say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, field_validator
from pydantic import Field as Field
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """One section of the settings; plugins derive their ``Config`` from it. No number in it is infinite or NaN."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, use_attribute_docstrings=False, allow_inf_nan=False
    )

    def other_models(self) -> Sequence[str]:
        """Directories of models that a method or reward reads beside the run's own: a teacher, a reward model. A run that
        continues finds them unchanged."""
        return ()

    @field_validator("*")
    @classmethod
    def _finite_inside(cls, value: Any) -> Any:
        """Numbers within a value of any type, such as ``model.architecture``, which the types do not reach."""
        if found := _not_finite(value):
            context = {"keys": found[0], "value": found[1]}
            raise PydanticCustomError("number_inside", "must be a finite number", context)
        return value


def _not_finite(value: Any) -> tuple[list[str | int], float] | None:
    """The first number within ``value`` that is infinite or NaN: the keys that lead to it, and what it is."""
    if isinstance(value, float):
        return None if math.isfinite(value) else ([], value)
    if not isinstance(value, Mapping | list | tuple):
        return None
    for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
        if found := _not_finite(item):
            return [key, *found[0]], found[1]
    return None


class EmptyConfig(Section):
    """The section of a plugin that has nothing to set."""


class DeviceConfig(Section):
    """Base of the sections of devices."""

    kernels: dict[str, str] = Field(
        {},
        description="Operator -> reference or the name of installed kernels; others take the kernel that is there.",
    )


class ParallelConfig(Section):
    """Base of the sections of parallel strategies. Axes: ``data``, ``tensor``, ``pipeline``, ``expert``, ``context``,
    ``sharding``."""

    def degree(self, axis: str) -> int:
        """Ranks along ``axis`` as the settings give them; 1 where there is no such axis, 0 where the rest decides."""
        return 1

    def shards_positions(self) -> Sequence[str]:
        """The settings by which ranks have different positions of one row, such as ``parallel.context``; none: every rank
        has whole rows."""
        return ()

    def fixes_trained(self) -> Sequence[str]:
        """The settings by which what is trained at the start is trained to the end, such as ``parallel.sharding_stage=2``, whose
        hooks on these parameters reduce their gradients; none: an optimizer may freeze and train others at any step."""
        return ()


class LauncherConfig(Section):
    """Base of the sections of launchers. How a run is started is no part of what it computes: a run continues with other
    values, and ``resolved.yaml`` leaves them out."""

    nproc: int = Field(0, ge=0, description="Ranks on each node; 0: as many as `parallel` needs.")
    nodes: int = Field(1, ge=1, description="Nodes (machines) of the run.")
    restarts: int = Field(
        0, ge=0, description="How often the run is started again after a rank was killed or a node was lost."
    )


class ModelConfig(Section):
    """Base of the sections of models: where weights, architecture and tokenizer come from."""

    path: str = Field(
        "", description="Model directory: config.json, safetensors and tokenizer files. Empty: new weights."
    )
    size: str = Field(
        "", description="Recipe that describes the model when there is no `path`, e.g. `tiny`; see the plugin's README."
    )
    architecture: dict[str, Any] = Field(
        default_factory=dict,
        description="Keys of config.json; they replace those of the file in `path`. A recipe fills all of them.",
    )
    tokenizer: str = Field("", description="Directory of the tokenizer; empty: `path`.")
    template: str = Field("", description="Chat template: the path of a .jinja file. Empty: the tokenizer's own.")

    def trains(self, name: str, usual: bool) -> bool:
        """Whether a run without an adapter trains this parameter; ``usual``: as its ``TensorMap`` says."""
        return usual

    def augments(self) -> list[str]:
        """Settings by which media of a training row differ from epoch to epoch."""
        return []


class AdapterConfig(Section):
    """Base of the sections of adapters."""

    def starts_from(self) -> str:
        """Directory of a saved adapter that training continues; ``""``: a new one, with which the model is its base."""
        return ""


class QuantizerConfig(Section):
    """Base of the sections of quantizers."""


class OptimizerConfig(Section):
    """Base of the sections of optimizers."""

    offload: bool = Field(
        False,
        description="Keep the optimizer state in host memory and move one parameter's state at a time to the device.",
    )


@dataclass(frozen=True, slots=True)
class ReferenceUse:
    """How a method uses its frozen reference model.

    Attributes:
        source: ``live``: the engine hands a model to the objective. ``precomputed``: the objective looks values up that it
            computed with the initial weights. ``none``: nothing is compared with the initial model.
        update_steps: after every so many steps the policy becomes the reference; 0: it stays.
    """

    source: Literal["live", "precomputed", "none"] = "live"
    update_steps: int = 0


class MethodConfig(Section):
    """Base of the sections of methods.

    Attributes:
        reference_optional: whether its loss can be computed without a reference (``ernie eval`` without ``--reference``).
    """

    reference_optional: ClassVar[bool] = False

    def reference_use(self) -> ReferenceUse:
        """How the reference is used, by a method with ``MethodCapability.REFERENCE``."""
        return ReferenceUse()


class FormatConfig(Section):
    """Base of the sections of formats."""

    def document_unit(self) -> Literal["line", "paragraph", "file"]:
        """What becomes one row of a plain text file."""
        return "line"


class RewardConfig(Section):
    """Base of the sections of reward functions."""

    weight: float = Field(1.0, description="Factor of this reward in the weighted sum; negative: a penalty.")


#: name -> base class, as ``Kind.config`` names them
BASES: dict[str, type[Section]] = {
    base.__name__: base
    for base in (
        DeviceConfig,
        ParallelConfig,
        LauncherConfig,
        ModelConfig,
        AdapterConfig,
        QuantizerConfig,
        OptimizerConfig,
        MethodConfig,
        FormatConfig,
        RewardConfig,
    )
}


def default(name: str) -> Section:
    """An instance of the base class ``name`` for a kind of which no plugin was chosen; empty for ``""``."""
    return BASES.get(name, EmptyConfig)()


class ExportConfig(Section):
    """Options of exporters that write weights."""

    dtype: Literal["", "float32", "bfloat16", "float16"] = Field(
        "", description="Dtype of the stored weights; empty: as they are in memory. Router weights stay float32."
    )
    max_shard_bytes: int = Field(5 * 1000**3, ge=1, description="Larger weights are cut into shards of this size.")
