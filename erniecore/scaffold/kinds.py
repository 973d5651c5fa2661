"""What a new plugin of each kind is for: the words that the templates need. One row per kind."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Draft:
    """Words about a new plugin.

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


DRAFTS: dict[str, Draft] = {
    "device": Draft("the host's processor under a name of its own", "`ernie run … --device {name}`"),
    "parallel": Draft("one process, ready to become several", "`ernie run … --parallel {name}`"),
    "model": Draft(
        "a small decoder-only language model",
        "`ernie model init --model {name} --size tiny --tokenizer TOKENIZER --out DIR`, then `ernie run … --model DIR`",
    ),
    "adapter": Draft("a learned factor per output of some linear layers", "`ernie run … --adapter {name}`"),
    "quantizer": Draft("weights rounded to a few bits, in training and export", "`ernie run … --quantizer {name}`"),
    "method": Draft("supervised learning with label smoothing", "`ernie run … --method {name}`"),
    "format": Draft("rows with a question and an answer", "`ernie data check FILE --format {name}`"),
    "scorer": Draft(
        "the share of the right answer's words that an answer has", "`ernie run … --method grpo --scorer {name}`"
    ),
    "exporter": Draft("a numpy archive of all weights", "`ernie export DIR --to {name} --out OUT`"),
    "server": Draft(
        "answers prompts over HTTP on this machine", "`ernie serve --model DIR --backend {name} port=8188`"
    ),
    "callback": Draft("metrics of every step as comma-separated values", "`ernie run … --callback {name}`"),
    "command": Draft("summarises one metric of a run", "`ernie {name} RUN`", "app", "command"),
}
