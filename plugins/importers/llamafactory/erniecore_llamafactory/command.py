"""LLaMA-Factory files that do not train: which of our commands does what they are for. And what to do without a plugin."""

from __future__ import annotations

from erniecore.api.importer import Imported

#: purpose -> the commands of LLaMA-Factory that such a file is for
PURPOSES = {
    "eval": "an evaluation (`llamafactory-cli train` with `do_eval` or `do_predict`, `llamafactory-cli eval`)",
    "chat": "`llamafactory-cli chat`, `webchat` or `api`",
    "export": "`llamafactory-cli export`",
}


def advice(model: str) -> dict[str, str]:
    """What to do where something that a file asks for is not here. ``model``: as the file names it."""
    return {
        "parallel": "install it, or train on one device: --parallel single",
        "quantizer": "install it, or put quantization_bit=null behind the file, which leaves the weights as they are",
        "model": "install it; `ernie config import` works without it",
        "model.path": f"{model} is no directory here: nothing is downloaded, and ERNIE models alone are trained "
        "(`ernie plugins --kind model`); everything else in the file can be used: --model DIR",
    }


def command_for(outcome: Imported, purpose: str, out: str) -> str:
    """Our command line for a file that does not train; empty for one that does. ``out``: ``export_dir``."""
    settings = {key: setting.value for key, setting in outcome.settings.items()}
    model, adapter = settings.get("model.path", "DIR"), settings.get("adapter.path", "")
    added = f" --adapter {adapter}" if adapter else ""
    if purpose == "eval":
        data = " ".join(f"--data {source['path']}" for source in settings.get("data.eval", ())) or "--data FILE"
        return f"ernie eval --model {model} {data} --method {settings.get('method.name', 'sft')}{added}"
    if purpose == "chat":
        return f"ernie chat --model {model}{added}"
    if purpose == "export":
        return f"ernie merge {adapter} --base {model} --out {out}" if adapter else f"ernie export {model} --out {out}"
    return ""
