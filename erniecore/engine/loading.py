"""Loading models from Python; the commands that use a model call the same functions. Importing this module is
light: paddle comes in after the device has set its environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from erniecore.types.model import Layer, ModelBundle
    from erniecore.types.text import Tokenizer


def load_model(
    path: str | Path, *, adapter: str | Path | None = None, dtype: str = "float32", device: str = "cpu"
) -> Layer:
    """The model of a model directory, a run or a checkpoint, in evaluation mode.

    Args:
        path: with config.json and safetensors of the Hugging Face format; or what ``run`` left.
        adapter: a saved adapter that goes onto it; a run that trained one brings its own.
        dtype: of the parameters in memory. device: a device plugin.

    Raises:
        UsageError: there is no model. CheckpointError: damaged or unfitting weights.
    """
    return open_model(path, adapter=adapter, dtype=dtype, device=device).model


def open_model(
    path: str | Path, *, adapter: str | Path | None = None, dtype: str = "float32", device: str = "cpu"
) -> ModelBundle:
    """As :func:`load_model`, with everything that belongs to the model: tokenizer, config.json, provenance.

    Args:
        device: a device plugin; empty within a run: the one that is open.
    """
    from erniecore.engine.models.bundles import open_device, open_located
    from erniecore.engine.models.located import locate

    located = locate(Path(path))
    if adapter is not None:
        located = located.with_adapter(Path(adapter))
    if device:
        open_device(device, located.path)
    return open_located(located, dtype=dtype).bundle


def load_adapter(model: Layer, path: str | Path, name: str) -> Layer:
    """Add a saved adapter to a model that is loaded, beside those that it has; it is the one in use from here on.

    ``model.set_adapter(name)`` changes to another one, ``model.adapter_names()`` lists them, and within
    ``with model.adapter_off():`` the model is its base.

    Args:
        path: a run, or the directory of an adapter. name: new on this model, without dots.

    Raises:
        UsageError: the name is taken. CheckpointError: damaged or unfitting weights.
    """
    from erniecore.engine.models.adapters import load_adapter as load

    return load(model, Path(path), name)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a model directory (or of a run's ``model/``), with the chat template of its model.

    Raises:
        UsageError: there is no model directory. CheckpointError: config.json cannot be read.
        EnvironmentFault: it has no tokenizer.
    """
    from erniecore.engine.models.bundles import open_tokenizer
    from erniecore.engine.models.located import locate
    from erniecore.errors import UsageError

    located = locate(Path(path))
    if located.is_checkpoint:
        raise UsageError("a checkpoint holds no tokenizer", where=str(path), fix="name the run's model directory")
    return open_tokenizer(located.path, located.tokenizer_home)[0]
