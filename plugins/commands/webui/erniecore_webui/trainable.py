"""Which of the model directories a run can train: told by their small files, before any command is asked."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal

from erniecore.api.installation import loadable
from erniecore.api.model import ModelPlugin
from erniecore.api.quantizer import QuantizerCapability
from erniecore_webui.model_dirs import TOKENIZERS, ModelDirs
from erniecore_webui.state_files import stored_object

#: ``all``: its weights; ``adapter``: only something that is added to them; ``unsure``: quantized by another toolkit; empty:
#: nothing
Trains = Literal["all", "adapter", "unsure", ""]
_OFFERED = 200


def offered(models: ModelDirs, *, with_adapter: bool) -> list[str]:
    """Places of models that can be trained: those first that need nothing else, each kind the newest first."""
    ranks = ("all", "adapter", "unsure") if with_adapter else ("all", "unsure", "adapter")
    found = [(trains(f.path, f.changed), place) for place, f in models.found().items() if not f.is_adapter]
    return [place for rank in ranks for kind, place in found if kind == rank][:_OFFERED]


def plugin_of(directory: Path) -> str:
    """The model plugin that reads a directory; empty: none, or several."""
    return _reader(str(stored_object(directory / "config.json").get("model_type", "")))


@lru_cache(maxsize=4096)
def trains(directory: Path, changed: float) -> Trains:
    """What of a model a run can train; ``changed``: when its config was written."""
    config = stored_object(directory / "config.json")
    provenance = stored_object(directory / "erniecore_manifest.json").get("provenance")
    # weights under names of their own are for whoever wrote them
    own_names = isinstance(provenance, dict) and provenance.get("layout") == "structured"
    tokenizer = any((directory / name).is_file() for name in TOKENIZERS)
    if own_names or not tokenizer or not _reader(str(config.get("model_type", ""))):
        return ""
    packed = config.get("quantization_config")
    return _packed(packed) if isinstance(packed, dict) else "all"


def _packed(packed: dict[str, object]) -> Trains:
    if packed.get("quant_method") != "erniecore":
        return "unsure"
    known = next((q.capabilities for q in loadable("quantizer") if q.name == packed.get("quantizer")), frozenset())
    fixed = QuantizerCapability.TRAIN in known and QuantizerCapability.TRAINABLE not in known
    return "adapter" if fixed else ""


def _reader(model_type: str) -> str:
    names = [p.name for p in loadable("model") if isinstance(p, ModelPlugin) and model_type in p.model_types]
    return names[0] if len(names) == 1 else ""
