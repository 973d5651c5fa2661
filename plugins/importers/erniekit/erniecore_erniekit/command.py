"""ERNIEKit files that do not train: which of our commands does what they are for. And what to do without a plugin."""

from __future__ import annotations

from typing import Any

from erniecore.api.importer import Imported

#: purpose -> the commands of ERNIEKit that such a file is for
PURPOSES = {
    "eval": "`erniekit eval`",
    "chat": "`erniekit server` or `erniekit chat`",
    "export": "`erniekit export` or `erniekit split`",
}

#: kind of a plugin that is not installed -> which keys of ERNIEKit do without it
ADVICE = {
    "parallel": "install it, or put tensor_parallel_degree=1 pipeline_parallel_degree=1 (every degree) behind the file",
    "quantizer": "install it, or put compute_type=bf16 behind the file, which leaves the weights as they are",
    "model": "install it; `ernie config import` works without it",
}


def command_for(outcome: Imported, purpose: str) -> str:
    """Our command line for a file that does not train; empty for one that does."""
    settings = {key: setting.value for key, setting in outcome.settings.items()}
    model, out = settings.get("model.path", "DIR"), settings.get("run.out", "OUT")
    if purpose == "eval":
        data = " ".join(f"--data {source['path']}" for source in settings.get("data.eval", ())) or "--data FILE"
        words: list[Any] = ["ernie eval --model", model, data, "--method", settings.get("method.name", "sft")]
        words += ["--adapter", out] if settings.get("adapter.name") else []
        words += ["--max-seq-len", settings["data.max_seq_len"]] if "data.max_seq_len" in settings else []
        return " ".join(map(str, words))
    if purpose == "chat":
        return f"ernie chat --model {model}"
    if purpose == "export":
        return f"ernie merge {out} --base {model} --out {str(out).rstrip('/')}/export"
    return ""
