"""The run fingerprint: what a run reads beside its settings and its rows, by content, in parts. A checkpoint records it, and a
run that continues finds the same, or is told to accept a part that has changed (``run.accept_changes``). No paddle.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import erniecore
from erniecore import registry
from erniecore.engine.file_hashes import FileHashes, digest_of

if TYPE_CHECKING:
    from erniecore.config.settings import RunSettings

#: part -> name -> sha256 of the file, or version of the distribution
Fingerprint = dict[str, dict[str, str]]
#: key of the fingerprint in ``state.json`` and in the provenance of what a run writes
KEY = "fingerprint"
MODEL_FILES = ("config.json", "*.safetensors", "*.safetensors.index.json", "adapter_config.json", "lora_config.json")
_TOKENIZER = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "preprocessor_config.json",
)
_TEMPLATE = ("chat_template.*",)
#: of a directory with another model, or of a run that made it
_ALL = tuple(
    f"{place}{name}" for place in ("", "model/", "adapter/") for name in (*MODEL_FILES, *_TEMPLATE, *_TOKENIZER)
)
#: kinds whose plugins make no number, or whose samples are compared one by one
_UNCOUNTED = ("callback", "launcher", "format")


def begin(settings: RunSettings, plugins: Mapping[str, Any]) -> Future[Fingerprint]:
    """:func:`fingerprint_of` in a thread of its own, beside the loading of what is hashed."""
    made: Future[Fingerprint] = Future()

    def work() -> None:
        try:
            made.set_result(fingerprint_of(settings, plugins))
        except BaseException as error:
            made.set_exception(error)

    threading.Thread(target=work, name="fingerprint", daemon=True).start()
    return made


def fingerprint_of(settings: RunSettings, plugins: Mapping[str, Any]) -> Fingerprint:
    """Of a run with these settings; parts that it does not have are left out."""
    model, adapter, method = settings.model, settings.adapter, settings.method
    words, others = model.tokenizer or model.path, {"reference": method.other_models()}
    others["adapter"] = [adapter.starts_from()] if adapter is not None else []
    others["reward"] = [path for reward in settings.rewards.values() for path in reward.other_models()]
    with FileHashes() as hashes:
        found = {"base": hashes.of(model.path, MODEL_FILES), "tokenizer": hashes.of(words, _TOKENIZER)}
        found["template"] = hashes.of(words, _TEMPLATE) | hashes.of_file(model.template)
        for part, paths in others.items():
            several = [(path, hashes.of(path, _ALL)) for path in paths]
            found[part] = {f"{path}/{name}": value for path, files in several for name, value in files.items()}
    found["plugins"] = _versions(plugins)
    return {part: entries for part, entries in found.items() if entries}


def digests(found: Fingerprint) -> dict[str, str]:
    """Part -> one hash of it; plugins are named with their versions elsewhere."""
    return {part: digest_of(entries) for part, entries in found.items() if part != "plugins"}


def _versions(plugins: Mapping[str, Any]) -> dict[str, str]:
    """Distribution -> version, of the core and of every plugin that makes numbers."""
    found = {"erniecore": erniecore.__version__}
    for kind, chosen in plugins.items():
        names = {plugin.name for plugin in (chosen if isinstance(chosen, list | tuple) else [chosen])}
        if kind not in _UNCOUNTED:
            found |= {e.distribution: e.version for e in registry.entries(kind) if e.name in names}
    return dict(sorted(found.items()))
