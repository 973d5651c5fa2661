"""What a new plugin of each kind is for: the values that its templates need. One row per kind."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PluginTemplate:
    """Values of a new plugin's templates.

    Attributes:
        about: what the generated plugin does, for its summary.
        usage: how it is used, for its README; ``{name}`` and ``{package}`` are replaced.
        main_module: module of the package that the entry point names.
        attribute: attribute of that module.
    """

    about: str
    usage: str
    main_module: str = "plugin"
    attribute: str = "plugin"


TEMPLATES: dict[str, PluginTemplate] = {
    "device": PluginTemplate("the host's processor under a name of its own", "`ernie run … --device {name}`"),
    "parallel": PluginTemplate("one process, ready to become several", "`ernie run … --parallel {name}`"),
    "model": PluginTemplate(
        "a small decoder-only language model",
        "`ernie model init --model {name} --size tiny --tokenizer TOKENIZER --out DIR`, then `ernie run … --model DIR`",
    ),
    "adapter": PluginTemplate("a learned factor per output of some linear layers", "`ernie run … --adapter {name}`"),
    "quantizer": PluginTemplate(
        "weights rounded to a few bits, in training and export", "`ernie run … --quantizer {name}`"
    ),
    "method": PluginTemplate("supervised learning with label smoothing", "`ernie run … --method {name}`"),
    "optimizer": PluginTemplate("Lion: the sign of a moving average of gradients", "`ernie run … --optimizer {name}`"),
    "schedule": PluginTemplate(
        "falls by a constant factor from the peak", "`ernie run … train.schedule={name} schedules.{name}.last=0.05`"
    ),
    "format": PluginTemplate("rows with a question and an answer", "`ernie data check FILE --format {name}`"),
    "reader": PluginTemplate("tables of tab-separated values", "`ernie data check FILE.{name}`"),
    "corpus": PluginTemplate("numpy files of token ids", "`ernie run … --method pt --data tokens.npy`"),
    "reward": PluginTemplate(
        "the fraction of the reference's words that a completion contains",
        "`ernie run … --method grpo --reward {name}`",
    ),
    "importer": PluginTemplate(
        "settings files of another toolkit", "`ernie run OLD.yaml`, `ernie config import OLD.yaml`"
    ),
    "exporter": PluginTemplate("a numpy archive of all weights", "`ernie export DIR --to {name} --out OUT`"),
    "launcher": PluginTemplate(
        "processes of this machine, ended when one fails", "`ernie run … --launcher {name} launcher.nproc=2`"
    ),
    "kernels": PluginTemplate(
        "the Walsh-Hadamard transform in numpy",
        "`ernie run … device.kernels.hadamard={name}`; it is taken by itself, too",
    ),
    "server": PluginTemplate(
        "answers prompts over HTTP on this machine", "`ernie serve --model DIR --backend {name} port=8188`"
    ),
    "forecaster": PluginTemplate(
        "peak memory from a rough size of activations", "`ernie run … --dry-run`, wherever it is installed"
    ),
    "callback": PluginTemplate("metrics of every step as comma-separated values", "`ernie run … --callback {name}`"),
    "command": PluginTemplate("summarizes one metric of a run", "`ernie {name} RUN`", "app", "command"),
}
