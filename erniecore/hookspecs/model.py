"""Hooks of model plugins. See ``erniecore.hookspecs`` for the rules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from erniecore.hookspecs.marker import hookspec

if TYPE_CHECKING:
    from erniecore.sections import Section
    from erniecore.types.model import Layer, Layout, StateAdapter
    from erniecore.types.records import Json
    from erniecore.types.shape import DecoderShape
    from erniecore.types.text import Tokenizer


class ModelHooks:
    """One provider: the model of the run. Called once per run and rank."""

    @hookspec(firstresult=True)
    def ernie_read_architecture(self, config: Section) -> Json:
        """The architecture as config.json has it, from ``config.path`` or the recipe; unknown keys are kept.

        No paddle: the plan and ``--dry-run`` call it too. Raises ``CheckpointError`` or ``ConfigError``.

        Example::

            @hookimpl
            def ernie_read_architecture(self, config):
                return json.loads((Path(config.path) / "config.json").read_text())
        """

    @hookspec(firstresult=True)
    def ernie_decoder_shape(self, architecture: Json) -> DecoderShape:
        """Sizes of the layers, from which activations, caches and products are planned. No paddle. Optional: without it the
        plan knows nothing of these.

        Example::

            @hookimpl
            def ernie_decoder_shape(self, architecture):
                layer = LayerShape(heads=8, kv_heads=2, head_dim=64, mlp=architecture["intermediate_size"])
                return DecoderShape(architecture["hidden_size"], architecture["vocab_size"], True, (layer,) * 12)
        """

    @hookspec(firstresult=True)
    def ernie_build_model(self, config: Section, architecture: Json, dtype: str) -> Layer:
        """A ``CausalLM``: single-device code without any parallelism. Called under ``paddle.LazyGuard``: parameters have
        shapes and initializers, and get their values later, so a constructor neither reads nor writes them.

        Example::

            @hookimpl
            def ernie_build_model(self, config, architecture, dtype):
                from mypackage.model import MyModel
                return MyModel(architecture)
        """

    @hookspec(firstresult=True)
    def ernie_model_layout(self, architecture: Json) -> Layout:
        """Parallel style of every parameter, as data.

        Example::

            @hookimpl
            def ernie_model_layout(self, architecture):
                return Layout((("*.q_proj.weight", "column"), ("*", "replicate")))
        """

    @hookspec(firstresult=True)
    def ernie_state_adapter(self, architecture: Json) -> StateAdapter:
        """Names and shapes of public checkpoints of this architecture. No paddle.

        Example::

            @hookimpl
            def ernie_state_adapter(self, architecture):
                from mypackage.state import MyStateAdapter
                return MyStateAdapter(architecture)
        """

    @hookspec(firstresult=True)
    def ernie_build_tokenizer(self, config: Section, directory: Path) -> Tokenizer:
        """The tokenizer in ``directory`` with this model's chat template. No paddle.

        Raises ``EnvironmentFault`` when the directory holds none.

        Example::

            @hookimpl
            def ernie_build_tokenizer(self, config, directory):
                return load_tokenizer(directory, template=my_template)
        """
