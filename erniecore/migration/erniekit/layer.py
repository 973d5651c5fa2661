"""An ERNIEKit file as a layer of settings: every value knows the line and the key that it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from erniecore.config.sources import COMMAND_LINE, Leaf, Place, Tree, merge
from erniecore.errors import UsageError
from erniecore.migration.erniekit.convert import Outcome
from erniecore.migration.erniekit.draft import Setting
from erniecore.migration.erniekit.reading import Source, import_source, read, refuse_unknown


def layer_of(path: Path, overrides: Sequence[str], device: str) -> tuple[Tree, tuple[str, ...]]:
    """The settings of a file that trains, and what to tell the user.

    Raises:
        UsageError: the file is for another command. ConfigError: unknown keys, values that mean nothing.
    """
    source = read(path, overrides)
    outcome = import_source(source, device)
    refuse_unknown(source, outcome)
    if outcome.purpose != "train":
        raise UsageError(
            f"this ERNIEKit file trains nothing: it is for {ERNIEKIT_COMMAND[outcome.purpose]}",
            where=str(path),
            next=command_for(outcome),
            code="ERN-C032",
        )
    notices = [f"{path} is an ERNIEKit file: {len(outcome.mapped)} keys mapped, {len(outcome.dropped)} dropped "
               f"(`ernie config import {path}` lists them)"]  # fmt: skip
    return tree_of(outcome, source), (*notices, *(str(notice) for notice in outcome.notices))


def tree_of(outcome: Outcome, source: Source) -> Tree:
    """The settings with their places."""
    tree: Tree = {}
    for key, setting in outcome.settings.items():
        node: Leaf | Tree = Leaf(setting.value, _place(key, setting, source))
        if isinstance(setting.value, dict):
            node = {name: Leaf(value, _place(key, setting, source)) for name, value in setting.value.items()}
        for part in reversed(key.split(".")):
            node = {part: node}
        assert isinstance(node, dict)
        tree = merge(tree, node)
    return tree


def _place(key: str, setting: Setting, source: Source) -> Place:
    if not setting.olds:
        return Place(f"{source.path} (default of {setting.default_of or 'ERNIEKit'})")
    old = setting.olds[0]
    shown = f"{key} (from {', '.join(setting.olds)})"
    if old in source.words:
        return Place(COMMAND_LINE, word=shown)
    return Place(source.path, source.lines.get(old, 0), shown)


ERNIEKIT_COMMAND = {
    "eval": "`erniekit eval`",
    "chat": "`erniekit server` or `erniekit chat`",
    "export": "`erniekit export` or `erniekit split`",
}


def command_for(outcome: Outcome) -> str:
    """Our command line for a file that does not train; empty for one that does."""
    settings = {key: setting.value for key, setting in outcome.settings.items()}
    model, out = settings.get("model.path", "DIR"), settings.get("run.out", "OUT")
    if outcome.purpose == "eval":
        data = " ".join(f"--data {source['path']}" for source in settings.get("data.eval", ())) or "--data FILE"
        words: list[Any] = ["ernie eval --model", model, data, "--method", settings.get("method.name", "sft")]
        words += ["--adapter", out] if settings.get("adapter.name") else []
        words += ["--max-seq-len", settings["data.max_seq_len"]] if "data.max_seq_len" in settings else []
        return " ".join(map(str, words))
    if outcome.purpose == "chat":
        return f"ernie chat --model {model}"
    if outcome.purpose == "export":
        return f"ernie merge {out} --base {model} --out {str(out).rstrip('/')}/export"
    return ""


#: kind of a plugin that is not installed -> which words of ERNIEKit do without it
WITHOUT = {
    "parallel": "install it, or put tensor_parallel_degree=1 pipeline_parallel_degree=1 (every degree) behind the file",
    "quantizer": "install it, or put compute_type=bf16 behind the file, which leaves the weights as they are",
    "model": "install it; `ernie config import` works without it",
}


def do_without(message: str) -> str:
    """What to do about a missing plugin that an ERNIEKit file asks for; ``message``: of ``PluginNotFound``."""
    return next((text for kind, text in WITHOUT.items() if f"no {kind} plugin" in message), "")
