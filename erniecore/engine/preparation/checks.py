"""Combinations of settings that no single key can check: what the device cannot do, schedules that contradict themselves.
No paddle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from erniecore.abilities import check_needs
from erniecore.errors import ConfigError
from erniecore.kinds import RUN_KINDS
from erniecore.types.run import Device

if TYPE_CHECKING:
    from erniecore.config.core import TrainSection
    from erniecore.sections import OptimizerConfig


def check_repeatable(device: Device, deterministic: bool) -> None:
    """Raises ``ConfigError`` where ``run.deterministic`` asks for results that the device does not repeat."""
    if deterministic and not device.deterministic:
        message = (
            f"device {device.name} does not repeat its results bit for bit; set it to false, or choose another device"
        )
        raise ConfigError.at("run.deterministic", message)


def check_offload(optimizer: OptimizerConfig, device: Device) -> None:
    """Raises ``ConfigError`` where optimizer state cannot lie in host memory."""
    lacks = device.lacks.get("host-offload", "")
    if optimizer.offload and lacks:
        raise ConfigError.at("optimizer.offload", f"not on device {device.name}: {lacks}")


def check_train(train: TrainSection, device: Device) -> None:
    """Raises ``ConfigError`` for a precision that the device lacks, or a schedule that ignores a setting."""
    if train.precision not in device.dtypes:
        known = ", ".join(sorted(device.dtypes))
        raise ConfigError.at("train.precision", f"device {device.name} has no {train.precision}; it has {known}")
    if train.precision == "float16":
        raise ConfigError.at("train.precision", "float16 needs loss scaling, which is not available; use bfloat16")
    if train.schedule == "constant" and (train.warmup_steps or train.warmup_ratio):
        raise ConfigError.at("train.schedule", "constant has no warm-up; use constant-with-warmup")
    if train.cycles > 1 and train.schedule != "cosine-with-restarts":
        raise ConfigError.at("train.cycles", f"{train.schedule} has no restarts; use cosine-with-restarts")
    if train.min_lr > train.learning_rate:
        raise ConfigError.at("train.min_lr", f"above train.learning_rate ({train.learning_rate})")


def check_abilities(plugins: Mapping[str, Any], names: Mapping[str, str], device: Device) -> None:
    """Raises ``ConfigError`` if a plugin of the run needs an ability that the device lacks; says what to do without it."""
    for kind in RUN_KINDS:
        plugin = plugins.get(kind)
        if plugin is not None:
            check_needs(kind, names[kind], plugin.needs, device)
