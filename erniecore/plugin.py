"""The base class of plugin objects.

A plugin object is what an entry point names: light (its module imports neither paddle nor numpy),
stateless, with a ``Config`` and methods marked ``@hookimpl``. What it builds is imported inside the hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pluggy

from erniecore.capabilities import (
    AdapterCapability,
    Capability,
    MethodCapability,
    ParallelCapability,
    QuantizerCapability,
)
from erniecore.sections import (
    AdapterConfig,
    DeviceConfig,
    FormatConfig,
    MethodConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    QuantizerConfig,
    Section,
)
from erniecore.sections import EmptyConfig as EmptyConfig
from erniecore.sections import RewardConfig as RewardConfig
from erniecore.types.records import Json

if TYPE_CHECKING:
    from erniecore_ops.kernels import Kernel

#: Marks a method of a plugin as the implementation of a hook (see ``erniecore/hookspecs``).
hookimpl = pluggy.HookimplMarker("erniecore")


class Plugin:
    """Base of all plugins.

    Attributes:
        kind: a key of ``kinds.KINDS``.
        name: the entry point's name, lower-case kebab; a point between digits is allowed where a run has one plugin of the kind.
        summary: one line for ``ernie plugins``.
        Config: the plugin's own section of the settings.
        capabilities: members of its kind's enumeration (``erniecore/capabilities.py``), which also says what each does.
        expected_failures: conformance checks that must fail, with the reason.
        conformance_config: settings with which the conformance kit runs the plugin, where the defaults do not do.
        needs: abilities of the device that the plugin cannot do without, such as ``"fp8"``
            (``erniecore.abilities.ABILITIES``); a device that lacks one is refused by name.
        generates: whether it lets the model generate text while it trains; plans then have the memory for that.
    """

    kind: ClassVar[str]
    name: ClassVar[str]
    summary: ClassVar[str]
    Config: ClassVar[type[Section]] = EmptyConfig
    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    expected_failures: ClassVar[dict[str, str]] = {}
    conformance_config: ClassVar[Mapping[str, Any]] = {}
    needs: ClassVar[frozenset[str]] = frozenset()
    generates: ClassVar[bool] = False

    def __repr__(self) -> str:
        return f"<{self.kind} plugin {self.name!r}>"


class DevicePlugin(Plugin):
    """Base of device plugins."""

    kind = "device"
    Config: ClassVar[type[DeviceConfig]] = DeviceConfig


class ParallelPlugin(Plugin):
    """Base of parallel strategies."""

    kind = "parallel"
    Config: ClassVar[type[ParallelConfig]] = ParallelConfig
    capabilities: ClassVar[frozenset[ParallelCapability]] = frozenset()


class ModelPlugin(Plugin):
    """Base of model plugins.

    Attributes:
        model_types: the values of ``model_type`` in a ``config.json`` that it reads.
        recipes: package (of the plugin) whose ``*.yaml`` files are the recipes that ``model.size`` can name.
    """

    kind = "model"
    Config: ClassVar[type[ModelConfig]] = ModelConfig
    model_types: ClassVar[tuple[str, ...]] = ()
    recipes: ClassVar[str] = ""


class CorpusPlugin(Plugin):
    """Base of corpus plugins.

    Attributes:
        records: record classes that its samples stand for; a method must accept one of them.
        title: what errors call such data, a plural: ``token files``.
        remedy: what to do with other data that shall be trained on beside it.
    """

    kind = "corpus"
    records: ClassVar[tuple[type, ...]] = ()
    title: ClassVar[str] = ""
    remedy: ClassVar[str] = ""


class RowReaderPlugin(Plugin):
    """Base of readers of files with rows. Its name is the ending of the files without the dot: ``parquet``.

    Attributes:
        cuts_documents: whether the format's ``document`` (a line, a paragraph, a file) decides what a row is, as with text.
    """

    kind = "reader"
    cuts_documents: ClassVar[bool] = False


class DecompressorPlugin(Plugin):
    """Base of readers of compressed files. Its name is the ending without the dot: ``gz``.

    Attributes:
        magic: bytes that every such file starts with.
        damages: exceptions that its stream raises for damaged data, beside ``EOFError``.
    """

    kind = "reader"
    magic: ClassVar[bytes] = b""
    damages: ClassVar[tuple[type[Exception], ...]] = ()


class SchemePlugin(Plugin):
    """Base of readers of files elsewhere. Its name is the scheme of their URLs: ``s3`` for ``s3://bucket/rows.jsonl``."""

    kind = "reader"


class HubPlugin(SchemePlugin):
    """Base of readers of hubs of models and data sets. Its name stands before the names there: ``hf`` for
    ``hf:owner/name[@revision][:split]``, of a data set also ``hf:owner/name[@revision]/file``."""


class KernelSet(Plugin):
    """Base of kernel plugins: the kernels of one distribution. They have no settings and no hooks; a run chooses one
    per operator (``device.kernels.OPERATOR``). Importing the module and calling anything but ``load`` imports no paddle.

    Attributes:
        devices: names of the device plugins that the kernels run on.
        operators: operator of ``erniecore.api.kernels.OPERATORS`` -> dtypes that its kernels take.
        on_request: why the set is used only where the settings name it; empty: it is used wherever it can run.
    """

    kind = "kernels"
    devices: frozenset[str] = frozenset()
    operators: Mapping[str, tuple[str, ...]] = {}
    on_request: str = ""

    def fault(self) -> str:
        """Why the kernels cannot run here and what to do about it; empty: they can."""
        return ""

    def load(self, operator: str, threads: Callable[[], int]) -> Mapping[str, Kernel]:
        """Function of ``erniecore_ops`` -> the kernel that replaces it; a function without one runs the reference.

        Called once per operator, when the device is open and paddle is imported.

        Args:
            operator: a key of ``operators``. threads: number of threads that a call from the current thread may use.
        Raises:
            OSError: the library cannot be loaded.
        """
        return {}


class AdapterPlugin(Plugin):
    """Base of adapter plugins. ``factors``: key of ``MethodPlugin.defaults`` -> (times what, source)."""

    kind = "adapter"
    factors: ClassVar[Mapping[str, tuple[float, str]]] = {}
    Config: ClassVar[type[AdapterConfig]] = AdapterConfig
    capabilities: ClassVar[frozenset[AdapterCapability]] = frozenset()


class QuantizerPlugin(Plugin):
    """Base of quantizer plugins.

    Attributes:
        min_sqnr_db: signal to noise in dB that the conformance kit demands of quantized weights.
    """

    kind = "quantizer"
    Config: ClassVar[type[QuantizerConfig]] = QuantizerConfig
    capabilities: ClassVar[frozenset[QuantizerCapability]] = frozenset()
    min_sqnr_db: ClassVar[float] = 20.0


class MethodPlugin(Plugin):
    """Base of method plugins. ``defaults``: key of a core section, such as ``train.learning_rate`` -> (value, source): what a
    run with this method has where nobody wrote anything."""

    kind = "method"
    defaults: ClassVar[Mapping[str, tuple[Any, str]]] = {}
    Config: ClassVar[type[MethodConfig]] = MethodConfig
    capabilities: ClassVar[frozenset[MethodCapability]] = frozenset()


class OptimizerPlugin(Plugin):
    """Base of optimizer plugins."""

    kind = "optimizer"
    Config: ClassVar[type[OptimizerConfig]] = OptimizerConfig


class SchedulePlugin(Plugin):
    """Base of plugins with a learning-rate schedule."""

    kind = "schedule"


class FormatPlugin(Plugin):
    """Base of format plugins.

    Attributes:
        examples: rows that it parses, for the conformance kit and the reference.
    """

    kind = "format"
    Config: ClassVar[type[FormatConfig]] = FormatConfig
    examples: ClassVar[Sequence[Json]] = ()

    def advice(self, row: Json) -> str:
        """What to rename so that ``row``, which fits no format, becomes one of these, as one short line; or nothing."""
        return ""
