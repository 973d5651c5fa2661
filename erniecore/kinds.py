"""The one table of plugin kinds: kind = config section = CLI flag = entry-point group = hooks.

Nothing else in the core lists the kinds. A new kind is one row here and one file in
``hookspecs/``; it needs two plugins that use it.
"""

from __future__ import annotations

from dataclasses import dataclass

from erniecore.capabilities import (
    AdapterCapability,
    Capability,
    ExporterCapability,
    MethodCapability,
    ParallelCapability,
    QuantizerCapability,
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of plugin.

    Attributes:
        name: what errors and ``--kind`` call it.
        group: the entry-point group that its plugins are found in.
        flag: the command-line flag that selects it, or ``None`` where a subcommand or a setting does.
        hooks: names of the build hooks that a plugin of this kind must implement.
        summary: one line for ``ernie plugins`` and the docs.
        section: the section of a run's settings; empty: runs configure no plugins of this kind.
        help, metavar: the flag in the help of commands that take the settings of a run.
        sets: the setting that the flag sets; empty: the section.
        default: the plugin chosen when nobody names one; ``None`` when there is none. For callbacks: taken along where it is
            installed, besides those that are named.
        required: a run cannot start without one.
        many: a run may use several; the section then has one sub-section per plugin.
        capabilities: what its plugins may say in ``Plugin.capabilities``; by default nothing.
        config: base class of its plugins' ``Config``, in ``erniecore/config/sections.py``; ``""``: any section.
        layer: module of ``erniecore.api`` that its plugins are written with; ``""``: the one of its name.
    """

    name: str
    group: str
    flag: str | None
    hooks: tuple[str, ...]
    summary: str
    section: str = ""
    help: str = ""
    metavar: str = "NAME"
    sets: str = ""
    default: str | None = None
    required: bool = False
    many: bool = False
    capabilities: type[Capability] = Capability
    config: str = ""
    layer: str = ""


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "device",
            "erniecore.devices",
            "--device",
            ("ernie_open_device",),
            "where tensors live and which kernels and collectives run",
            section="device",
            help="Device; default cpu.",
            default="cpu",
            config="DeviceConfig",
            required=True,
        ),
        Kind(
            "parallel",
            "erniecore.parallel",
            "--parallel",
            ("ernie_plan_parallel", "ernie_parallelize"),
            "how one model is spread over many ranks",
            section="parallel",
            help="Parallel strategy, e.g. hybrid; default single.",
            capabilities=ParallelCapability,
            default="single",
            config="ParallelConfig",
            required=True,
        ),
        Kind(
            "model",
            "erniecore.models",
            "--model",
            (
                "ernie_read_architecture",
                "ernie_build_model",
                "ernie_model_layout",
                "ernie_state_adapter",
                "ernie_build_tokenizer",
            ),
            "an architecture, its weight names, tokenizer and chat template",
            section="model",
            help="Model plugin or model directory.",
            metavar="NAME|DIR",
            config="ModelConfig",
            required=True,
        ),
        Kind(
            "adapter",
            "erniecore.adapters",
            "--adapter",
            ("ernie_adapt_model",),
            "a small trainable addition to a frozen model",
            section="adapter",
            help="Adapter, e.g. lora.",
            capabilities=AdapterCapability,
            config="AdapterConfig",
        ),
        Kind(
            "quantizer",
            "erniecore.quantizers",
            "--quantizer",
            ("ernie_quantize_model",),
            "low-bit weights or activations, in training and export",
            section="quantizer",
            help="Quantizer, e.g. wint8.",
            capabilities=QuantizerCapability,
            config="QuantizerConfig",
        ),
        Kind(
            "method",
            "erniecore.methods",
            "--method",
            ("ernie_build_objective", "ernie_build_encoder"),
            "training methods: encoding and loss",
            section="method",
            help="Training method, e.g. sft.",
            required=True,
            capabilities=MethodCapability,
            config="MethodConfig",
        ),
        Kind(
            "optimizer",
            "erniecore.optimizers",
            "--optimizer",
            ("ernie_build_optimizer", "ernie_optimizer_bytes"),
            "how gradients change the parameters, and what state that needs",
            section="optimizer",
            help="Optimizer; default adamw.",
            default="adamw",
            required=True,
            config="OptimizerConfig",
        ),
        Kind(
            "schedule",
            "erniecore.schedules",
            None,
            ("ernie_schedule_factor",),
            "the learning rate after the warm-up; `train.schedule` names it",
            section="schedules",
            sets="train.schedule",
            many=True,
        ),
        Kind(
            "launcher",
            "erniecore.launchers",
            "--launcher",
            ("ernie_open_launcher",),
            "starts, watches and restarts the processes of a run",
            section="launcher",
            help="Launcher; default local.",
            default="local",
            required=True,
            config="LauncherConfig",
        ),
        Kind(
            "format",
            "erniecore.formats",
            "--format",
            ("ernie_match_row", "ernie_parse_row"),
            "how rows of a data file become records",
            section="formats",
            help="Data format; default auto.",
            sets="data.format",
            default="auto",
            config="FormatConfig",
            layer="data",
            many=True,
        ),
        Kind("reader", "erniecore.readers", None, (), "how rows are read from a kind of file, by its ending or URL"),
        Kind(
            "corpus",
            "erniecore.corpora",
            None,
            ("ernie_match_corpus", "ernie_open_corpus"),
            "data that is samples already, such as token files",
        ),
        Kind(
            "reward",
            "erniecore.rewards",
            "--reward",
            ("ernie_compute_rewards",),
            "the reward of a completion, for reinforcement learning",
            section="rewards",
            help="Reward function, e.g. for grpo.",
            config="RewardConfig",
            many=True,
        ),
        Kind(
            "importer",
            "erniecore.importers",
            "--from",
            ("ernie_match_settings", "ernie_import_settings", "ernie_describe_keys"),
            "reads settings files of another toolkit",
        ),
        Kind(
            "exporter",
            "erniecore.exporters",
            "--to",
            ("ernie_export",),
            "how a trained model is written for others",
            capabilities=ExporterCapability,
            layer="export",
        ),
        Kind(
            "kernels",
            "erniecore.kernels",
            None,
            (),
            "replaces operators on a device; `device.kernels.OPERATOR` chooses",
        ),
        Kind("server", "erniecore.servers", "--backend", ("ernie_serve",), "how a model answers over the network"),
        Kind(
            "callback",
            "erniecore.callbacks",
            "--callback",
            (),
            "watches a run: metrics, loggers, profilers",
            section="callbacks",
            help="Callback, e.g. tensorboard.",
            default="report",
            many=True,
        ),
        Kind(
            "forecaster",
            "erniecore.forecasters",
            None,
            ("ernie_forecast",),
            "peak memory and step time of a run before it starts; every installed one is asked",
        ),
        Kind("command", "erniecore.commands", None, (), "a further `ernie` subcommand, loaded only when typed"),
    )
}

#: kinds of which a run has one plugin at most, in the order in which the plan prints them; section and kind have one name
RUN_KINDS: tuple[str, ...] = tuple(kind.name for kind in KINDS.values() if kind.section and not kind.many)
#: kinds of which a run may have several: section of the settings -> kind
MANY: dict[str, str] = {kind.section: kind.name for kind in KINDS.values() if kind.section and kind.many}
#: kinds whose flag is a setting of a run, those first that a run must name
FLAG_KINDS: tuple[Kind, ...] = tuple(
    sorted(
        (kind for kind in KINDS.values() if kind.flag and kind.section),
        key=lambda kind: not (kind.required and kind.default is None),
    )
)
