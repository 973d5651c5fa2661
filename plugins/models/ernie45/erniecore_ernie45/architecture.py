"""What a config.json says about an ERNIE 4.5 dense model, checked once. No paddle, no numpy.

Two spellings of the rope keys are read (a flat ``rope_theta`` and ``rope_parameters.rope_theta``). ``rms_norm_eps`` and
the rope base have no default here: published readers disagree on it, and a wrong one damages a model silently.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from erniecore.api import CheckpointError, ConfigError, Json, nearest, shorten
from erniecore.api.files import read_object
from erniecore.api.model import DecoderShape, LayerShape
from erniecore_ernie45.config import DecoderSection, ModelSection

#: keys of our own: how the residual stream is scaled, see ``residual.py``
GPAS, LAYER_NORM_SCALING = "gpas", "layer_norm_scaling"
#: values of ``gpas``: whether the gradient of the stream passes unchanged
GATES = ("straight-through", "plain")
#: sizes and numbers of layers beyond these are mistakes, and would be built for hours
MOST, MOST_LAYERS = 1 << 24, 4096


class Keys:
    """Typed access to the keys of one config.json; every error names the file and the key."""

    def __init__(self, source: Json, where: str) -> None:
        self.source, self.where = source, where

    def fault(self, key: str, message: str, *, expected: str = "", fix: str = "") -> CheckpointError:
        """The error for ``key``; the caller raises it."""
        found = shorten(self.source[key]) if key in self.source else ""
        return CheckpointError(message, where=f"{self.where}: {key}", found=found, expected=expected, fix=fix)

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1, maximum: int = MOST) -> int:
        """A whole number within bounds; required when there is no default."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.fault(key, "not a usable number", expected=f"a whole number, {minimum} or more")
        if value > maximum:
            raise self.fault(key, "larger than any model", expected=f"at most {maximum}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number; required when there is no default."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= sys.float_info.max:
            raise self.fault(key, "not a usable number", expected="a positive number that a float can hold")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """The boolean value of a key."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.fault(key, "not a truth value", expected="true or false")
        return value

    def choice(self, key: str, choices: Sequence[str]) -> str:
        """One of ``choices``, or ``""`` for a missing key."""
        value = self.source.get(key)
        if value not in (None, *choices):
            raise self.fault(key, "not supported by this model", expected=" or ".join(choices))
        return str(value or "")

    def texts(self, key: str) -> None:
        """Refuses anything but a list of texts; a missing key or null is fine."""
        value = self.source.get(key)
        if value is not None and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
            raise self.fault(key, "not a list of texts", expected='["…"]')

    def only(self, key: str, supported: object) -> None:
        """Refuses any value of ``key`` but ``supported``; a missing key or null is fine."""
        if self.source.get(key) not in (None, supported):
            raise self.fault(key, "not supported by this model", expected=json.dumps(supported))

    def required(self, key: str) -> None:
        """Refuses a missing key and null, with the nearest key that is there."""
        if self.source.get(key) is None:
            close = nearest(key, self.source)
            fix = f"did you mean {close!r}?" if close else "add the key; it has no safe default"
            raise self.fault(key, "this key is missing", fix=fix)

    def _get(self, key: str, default: object) -> Any:
        if default is None:
            self.required(key)
        value = self.source.get(key)
        return default if value is None else value


@dataclass(frozen=True)
class Architecture:
    """Sizes of a dense decoder. ``source`` is the whole config.json, unknown keys included."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    use_bias: bool
    initializer_range: float
    gpas: str
    layer_norm_scaling: bool
    source: Mapping[str, Any] = field(repr=False)

    @property
    def head_bias(self) -> bool:
        """Whether the output head has a bias: never in the dense family."""
        return False

    def shape(self) -> DecoderShape:
        """Sizes for the plan."""
        layers = tuple(self.layer_shape(index) for index in range(self.num_hidden_layers))
        return DecoderShape(self.hidden_size, self.vocab_size, self.tie_word_embeddings, layers)

    def layer_shape(self, index: int) -> LayerShape:
        """Shape of the layer at this index."""
        return LayerShape(self.num_attention_heads, self.num_key_value_heads, self.head_dim, self.intermediate_size)

    @classmethod
    def parse(cls, source: Json, where: str = "config.json") -> Architecture:
        """Raises ``CheckpointError`` for missing, impossible or contradictory keys."""
        return cls(**decoder_fields(Keys(source, where), "ernie4_5"))


def decoder_fields(keys: Keys, model_type: str) -> dict[str, Any]:
    """The fields of :class:`Architecture`, as constructor arguments (the MoE model adds its own)."""
    keys.only("model_type", model_type)
    keys.only("hidden_act", "silu")
    keys.only("compression_ratio", 1.0)
    keys.texts("architectures")
    keys.integer("max_position_embeddings", 1)
    hidden, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    return {
        "vocab_size": keys.integer("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": keys.integer("intermediate_size"),
        "num_hidden_layers": keys.integer("num_hidden_layers", maximum=MOST_LAYERS),
        "num_attention_heads": heads,
        "num_key_value_heads": _key_value_heads(keys, heads),
        "head_dim": _head_dim(keys, hidden, heads),
        "rms_norm_eps": keys.number("rms_norm_eps"),
        "rope_theta": _rope_theta(keys),
        # The published readers agree on these defaults.
        "tie_word_embeddings": keys.flag("tie_word_embeddings", True),
        "use_bias": keys.flag("use_bias", False),
        "initializer_range": keys.number("initializer_range", 0.02),
        "gpas": keys.choice(GPAS, GATES),
        "layer_norm_scaling": keys.flag(LAYER_NORM_SCALING, False),
        "source": dict(keys.source),
    }


def _key_value_heads(keys: Keys, heads: int) -> int:
    count = keys.integer("num_key_value_heads")
    if heads % count:
        raise keys.fault("num_key_value_heads", f"does not divide num_attention_heads = {heads}")
    return count


def _head_dim(keys: Keys, hidden: int, heads: int) -> int:
    """The key, or hidden / heads when it is absent. The 0.3B model is 2048 wide in attention and 1024 outside."""
    if keys.source.get("head_dim") is None and hidden % heads:
        raise keys.fault("head_dim", f"this key is missing, and {heads} heads do not divide hidden_size = {hidden}")
    size = keys.integer("head_dim", hidden // heads)
    if size % 2:
        raise keys.fault("head_dim", "rotary positions need an even head size", fix=f"it is {size}")
    return size


def _rope_theta(keys: Keys) -> float:
    keys.only("rope_scaling", None)
    nested = keys.source.get("rope_parameters")
    if nested is None:
        return keys.number("rope_theta")
    if not isinstance(nested, Mapping):
        raise keys.fault("rope_parameters", "not a mapping", expected='{"rope_theta": …, "rope_type": "default"}')
    inner = Keys(nested, f"{keys.where}: rope_parameters")
    inner.only("rope_type", "default")
    theta = inner.number("rope_theta")
    if keys.source.get("rope_theta") not in (None, theta):
        raise keys.fault("rope_theta", "contradicts rope_parameters", expected=str(theta), fix="remove one of the two")
    return theta


def read_source(config: ModelSection) -> dict[str, Any]:
    """config.json of ``config.path`` with ``config.architecture`` on top; the mapping alone when there is no path.

    Raises ``ConfigError`` when neither says anything or both a path and a recipe are given, ``CheckpointError`` for a
    file that is missing or no JSON object.
    """
    if not config.path:
        if not config.architecture:
            raise ConfigError.at("model.path", "neither a model directory nor `model.size` nor `model.architecture`")
        return _scaled(config, dict(config.architecture))
    if config.size:
        raise ConfigError.at("model.size", "a recipe is for new weights; `model.path` already says what the model is")
    source = read_object(
        Path(config.path) / "config.json", CheckpointError, fix="give a directory that holds config.json"
    )
    return _scaled(config, {**source, **config.architecture})


def _scaled(config: ModelSection, source: dict[str, Any]) -> dict[str, Any]:
    """config.json with the scaling of the residual stream that the settings ask for, of a model that has the settings."""
    if not isinstance(config, DecoderSection):
        return source
    if config.layer_norm_scaling and config.path and not source.get(LAYER_NORM_SCALING):
        message = "these weights were trained without; a model learns with scaled norms from its first step"
        raise ConfigError.at("model.layer_norm_scaling", message)
    asked = {GPAS: config.gpas} if config.gpas != "off" else {}
    return {**source, **asked, **({LAYER_NORM_SCALING: True} if config.layer_norm_scaling else {})}
