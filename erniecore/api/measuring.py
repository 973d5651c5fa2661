"""For benchmarks: an open device, processes, the data path, training steps and decoding, as in a run. Light; every function
imports what it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.engine.launch import default_device, paddle_variables, read_cluster

if TYPE_CHECKING:
    from erniecore.config.compose import LoadedSettings
    from erniecore.engine.training.data_path import DataPath
    from erniecore.types.model import ModelBundle
    from erniecore.types.run import Cluster, Device
    from erniecore.types.shape import DecoderShape

__all__ = [
    "data_path",
    "default_device",
    "model_shape",
    "open_device",
    "paddle_variables",
    "read_cluster",
    "train",
    "use_kernels",
]


def open_device(name: str, dtype: str = "float32", cluster: Cluster | None = None) -> Device:
    """A device with its default settings, open; paddle is imported.

    Raises:
        UsageError: it has no such dtype. DeviceUnavailable: it cannot be opened.
    """
    from erniecore.engine.launch import apply_environment
    from erniecore.errors import UsageError

    device = default_device(name, cluster)
    if dtype not in device.dtypes:
        raise UsageError(f"device {name} has no {dtype}", expected="one of " + ", ".join(sorted(device.dtypes)))
    apply_environment(device.environment())
    device.open()
    return device


def use_kernels(device: Device) -> None:
    """From here on operators run with the kernels that a run on this device chooses."""
    from erniecore import kernels
    from erniecore.engine import launch

    launch.use_kernels(kernels.choose(device.name, {}), [])


def train(loaded: LoadedSettings, listeners: Sequence[object] = ()) -> list[Mapping[str, Any]]:
    """Train without a console; ``listeners`` have lifecycle hooks. Returns the events. Raises what a run raises."""
    from erniecore.engine import entry

    return list(entry.run_loaded(loaded, console="none", listeners=listeners).events)


def data_path(loaded: LoadedSettings) -> DataPath:
    """The data path of a run, part by part.

    Raises:
        UsageError: the data is token files, which are mapped as they are. ErnieError: settings that are wrong.
    """
    from erniecore.engine.training.data_path import open_data_path

    return open_data_path(loaded)


def model_shape(model: Path, bundle: ModelBundle) -> tuple[str, DecoderShape | None]:
    """(model plugin, sizes of its decoder) of a model directory or run; no sizes where the plugin does not say them."""
    from erniecore.config.selection import plugin_for_directory
    from erniecore.engine.models import bundles, located
    from erniecore.host import assemble

    name = plugin_for_directory(located.locate(model).path)
    host = assemble({"model": bundles.model_plugin(name)})
    return name, host.hook.ernie_decoder_shape(architecture=bundle.architecture)
