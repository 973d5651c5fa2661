"""Hooks of adapters. See ``erniecore.hookspecs`` for the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from erniecore.hookspecs.marker import hookspec

if TYPE_CHECKING:
    from erniecore.sections import Section
    from erniecore.types.model import Layer, Layout


class AdapterHooks:
    """One provider: the adapter of the run, or the one that reads a saved adapter."""

    @hookspec(firstresult=True)
    def ernie_adapt_model(self, config: Section, model: Layer) -> Layer:
        """Freeze the model and add what will be trained; after the base weights are loaded.

        The base's parameters keep their names. The result may have ``lr_factors`` (pattern over parameter names ->
        factor of the learning rate) and ``adapter_off()`` (a context manager in which it is the base). With the
        capability ``merge`` it has ``merge()``, ``unmerge()`` and ``unload()``, which takes the adapter off and leaves
        the weights as they are; with ``empty`` the base may have no values yet (``erniecore.api.layers.filled``).

        Example::

            @hookimpl
            def ernie_adapt_model(self, config, model):
                return add_lora(model, rank=config.rank)
        """

    @hookspec(firstresult=True)
    def ernie_adapter_shapes(
        self, config: Section, shapes: Mapping[str, Sequence[int]]
    ) -> Mapping[str, tuple[int, ...]]:
        """Name -> shape of the parameters that ``ernie_adapt_model`` would add for training, for the plan; ``shapes``
        are those of the base. No paddle. Optional: without it the plan does not know the adapter's size.

        Example::

            @hookimpl
            def ernie_adapter_shapes(self, config, shapes):
                return {f"{n}.scale": (s[-1],) for n, s in shapes.items() if len(s) == 2}
        """

    @hookspec(firstresult=True)
    def ernie_adapter_layout(self, config: Section, layout: Layout) -> Layout:
        """The model's ``layout`` with rules for what ``ernie_adapt_model`` adds, before its own; asked for when matrices
        are cut. Optional: without it such runs are refused. Raises ``ConfigError`` for what cannot be cut.

        Example::

            @hookimpl
            def ernie_adapter_layout(self, layout):
                return Layout((("*.scale", "last"), *layout.rules))
        """

    @hookspec(firstresult=True)
    def ernie_save_adapter(self, config: Section, model: Layer, target: Path, base: str) -> Path:
        """Write the trained adapter of ``model`` into the existing, empty directory ``target``; returns it. ``base`` is
        the base's model directory or ``""``. Main rank, at the end of a run. Optional: without it only checkpoints hold
        the adapter.

        Example::

            @hookimpl
            def ernie_save_adapter(self, model, target):
                write_tensors(target / "scales.safetensors", scales_of(model))
                return target
        """

    @hookspec(firstresult=True)
    def ernie_match_adapter(self, directory: Path) -> bool:
        """Whether ``ernie_load_adapter`` reads this directory; exactly one installed adapter should. No paddle.

        Example::

            @hookimpl
            def ernie_match_adapter(self, directory):
                return (directory / "scales.safetensors").is_file()
        """

    @hookspec(firstresult=True)
    def ernie_load_adapter(self, model: Layer, directory: Path, name: str) -> Layer:
        """``model`` with the adapter that ``ernie_save_adapter`` wrote, not trained; outside a run.

        ``name`` tells it from others on the same model, with ``set_adapter(name)``, where an adapter allows several.

        Example::

            @hookimpl
            def ernie_load_adapter(self, model, directory):
                return add_scales(model, read_tensors(directory / "scales.safetensors"))
        """
