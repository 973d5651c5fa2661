"""What a plugin says of itself beyond its hooks: one closed enumeration per kind.

A capability either *steers* the engine, which then calls the plugin in another way, or only *selects checks*: the
conformance kit relies on it. A value that its kind does not know is refused when the plugin is loaded.
"""

from __future__ import annotations

from enum import Enum


class Capability(str, Enum):
    """Base of the enumerations; a member is its text.

    Attributes:
        meaning: what a plugin promises with it.
        steers: whether the engine acts on it; ``False``: it selects conformance checks alone.
    """

    meaning: str
    steers: bool

    def __new__(cls, text: str, meaning: str, steers: bool) -> Capability:
        """A member out of its three parts."""
        member = str.__new__(cls, text)
        member._value_ = text
        member.meaning, member.steers = meaning, steers
        return member

    def __str__(self) -> str:
        return str(self.value)


class MethodCapability(Capability):
    """Capabilities of method plugins."""

    REFERENCE = "reference", "compares with a frozen reference model, which the engine hands to its objective", True
    REWARDS = "rewards", "learns from the reward functions of the run, and cannot run without one", True
    SCORE_HEAD = "score-head", "trains a head that gives one number per position; the engine adds it to the model", True
    MEAN_NLL = "mean-nll", "its loss is the mean negative log-likelihood of the target tokens", False


class AdapterCapability(Capability):
    """Capabilities of adapter plugins."""

    MERGE = "merge", "its update can be merged into the weights of the base, and taken out again", True
    EMPTY = "empty", "takes a base whose parameters are empty, and fills those that it reads (`layers.filled`)", True


class QuantizerCapability(Capability):
    """Of quantizers; each has ``TRAIN``, ``EXPORT`` or both."""

    TRAIN = "train", "phase `train`: a run trains on the quantized model", False
    EXPORT = "export", "phase `export`: `ernie quantize` writes a quantized model directory", True
    TRAINABLE = "trainable", "quantized weights stay trainable parameters: a run ends with a quantized export", True
    CALIBRATE = "calibrate", "`ernie quantize` needs calibration data and calls `ernie_calibrate_model`", True
    EMPTY = "empty", "takes a model whose parameters are empty, and fills a layer to pack it (`layers.fill`)", True


class ParallelCapability(Capability):
    """Capabilities of parallel strategies."""

    EMPTY = "empty", "takes a model whose parameters are empty, and drops or cuts them (`layers.keep_part`)", True


class ExporterCapability(Capability):
    """Capabilities of exporter plugins."""

    PACKED = "packed", "writes quantized weights as they are stored; others get refused", True
    STREAMED = (
        "streamed",
        "takes weights from `public_tensors` alone: they stay in their files, no model is built",
        True,
    )
    INSTALLED_MODEL = "installed-model", "needs an architecture of an installed model plugin", False
    LOSSY = "lossy", "what it writes does not reload to the same weights", False
