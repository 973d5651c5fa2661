"""The one table of plugin kinds: kind = config section = CLI flag = entry-point group = hooks.

Nothing else in the core lists the kinds. A new kind is one row here and one class of hooks in
``hookspecs.py``; it needs two plugins that use it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of plugin.

    Attributes:
        name: what errors and ``--kind`` call it; for a configured kind also the section of the settings.
        group: the entry-point group that its plugins are found in.
        flag: the command-line flag that selects it, or ``None`` where a subcommand or an option does.
        hooks: names of the build hooks that a plugin of this kind must implement.
        default: the plugin chosen when nobody names one; ``None`` when there is none.
        required: a run cannot start without one.
        many: a run may use several (callbacks, formats, scorers).
        summary: one line for ``ernie plugins`` and the docs.
    """

    name: str
    group: str
    flag: str | None
    hooks: tuple[str, ...]
    summary: str
    default: str | None = None
    required: bool = False
    many: bool = False


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "device",
            "erniecore.devices",
            "--device",
            ("ernie_open_device",),
            "where tensors live and which kernels and collectives run",
            default="cpu",
            required=True,
        ),
        Kind(
            "parallel",
            "erniecore.parallel",
            "--parallel",
            ("ernie_plan_parallel", "ernie_parallelize"),
            "how one model is spread over many ranks",
            default="single",
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
            required=True,
        ),
        Kind(
            "adapter",
            "erniecore.adapters",
            "--adapter",
            ("ernie_adapt_model",),
            "a small trainable addition to a frozen model",
        ),
        Kind(
            "quantizer",
            "erniecore.quantizers",
            "--quantizer",
            ("ernie_quantize_model",),
            "low-bit weights or activations, in training and export",
        ),
        Kind(
            "method",
            "erniecore.methods",
            "--method",
            ("ernie_build_objective", "ernie_build_encoder"),
            "what is learned: samples and loss",
            required=True,
        ),
        Kind(
            "format",
            "erniecore.formats",
            "--format",
            ("ernie_match_row", "ernie_parse_row"),
            "how rows of a data file become records",
            default="auto",
            many=True,
        ),
        Kind(
            "scorer",
            "erniecore.scorers",
            "--scorer",
            ("ernie_score_attempts",),
            "what an answer that the model tried is worth, for reinforcement learning",
            many=True,
        ),
        Kind("exporter", "erniecore.exporters", "--to", ("ernie_export",), "how a trained model is written for others"),
        Kind("server", "erniecore.servers", "--backend", ("ernie_serve",), "how a model answers over the network"),
        Kind(
            "callback", "erniecore.callbacks", "--callback", (), "watches a run: metrics, loggers, profilers", many=True
        ),
        Kind("command", "erniecore.commands", None, (), "a further `ernie` subcommand, loaded only when typed"),
    )
}

#: Kinds whose plugins a run selects and configures, in the order in which the plan prints them.
RUN_KINDS: tuple[str, ...] = ("device", "parallel", "model", "adapter", "quantizer", "method")
