"""The run fingerprint: what a run reads beside its settings and its rows, by content, in parts. A checkpoint records it, and a
run that continues finds the same, or is told to accept a part that has changed (``run.accept_changes``). No paddle.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore_system import contents

import erniecore
from erniecore import registry
from erniecore.data.splits import user_cache

if TYPE_CHECKING:
    from erniecore.config.settings import RunSettings

#: key of the fingerprint in ``state.json`` and in the provenance of what a run writes
KEY = "fingerprint"
#: in the user's cache
HASHES = "hashes.json"
#: kinds whose plugins make no number, may change on the way (layouts), or whose samples are compared one by one
_UNCOUNTED = ("callback", "launcher", "parallel", "format")


def begin(settings: RunSettings, plugins: Mapping[str, Any]) -> Future[contents.Fingerprint]:
    """Begins to hash what a run with these settings reads, beside its loading."""
    model, adapter, method = settings.model, settings.adapter, settings.method
    others = {
        "reference": method.other_models(),
        "adapter": [] if adapter is None else [adapter.starts_from()],
        "reward": [path for reward in settings.rewards.values() for path in reward.other_models()],
    }
    versions = {"erniecore": erniecore.__version__}
    for kind, chosen in plugins.items():
        names = {plugin.name for plugin in (chosen if isinstance(chosen, list | tuple) else [chosen])}
        if kind not in _UNCOUNTED:
            versions |= {e.distribution: e.version for e in registry.entries(kind) if e.name in names}
    cache, text = user_cache().with_name(HASHES), model.tokenizer or model.path
    return contents.begin(cache, model.path, text, model.template, others, versions)


def tree_digest(*directories: Path | None) -> str:
    """One hash of all files in ``directories``; those that did not change are not read again."""
    return contents.tree_digest(user_cache().with_name(HASHES), directories)


def model_digest(directory: Path) -> str:
    """One hash of config.json and the weights in ``directory``; files that did not change are not read again."""
    return contents.model_digest(user_cache().with_name(HASHES), directory)
