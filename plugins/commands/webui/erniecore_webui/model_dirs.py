"""Model directories, packed ones and adapters below some roots: found by their config files, described without a framework.

A page names a directory by its place; only places that were found are answered, so that no other path is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from erniecore.api import UsageError
from erniecore.api.runs import EVENTS_NAME
from erniecore_webui.listing import Listing, scan
from erniecore_webui.state_files import stored_object

Kind = Literal["model", "packed", "adapter"]
#: levels below a root, and below a run, in which models are looked for; most entries
_DEPTH, _RUN_DEPTH, _MOST = 4, 3, 200_000
_ADAPTER = ("adapter_config.json", "lora_config.json")
TOKENIZERS = ("tokenizer.json", "tokenizer.model")
_SKIPPED = frozenset({"ckpt", "logs", "control", "node_modules", "site-packages", "__pycache__"})


@dataclass(frozen=True, slots=True)
class Found:
    """A directory with a model: its path, its place as a command is given it, and when its config was written."""

    path: Path
    place: str
    changed: float
    is_adapter: bool


@dataclass(frozen=True, slots=True)
class ModelDir:
    """What a row of the list shows; ``""`` and None where the files do not tell.

    Attributes:
        numbers: dtype of the weights, or how they are packed.
        origin: (what, value) pairs of where it came from.
        media: whether it has an encoder of images.
    """

    place: str
    name: str
    kind: Kind
    architecture: str
    parameters: int | None
    bytes: int
    numbers: str
    tokenizer: str
    template: bool
    media: bool
    context: int | None
    origin: tuple[tuple[str, str], ...]
    changed: float


class ModelDirs(Listing[Found]):
    """Finds models below ``roots``. ``home``: where commands are started."""

    def __init__(self, roots: Sequence[Path], home: Path) -> None:
        super().__init__()
        self._roots, self.home = list(dict.fromkeys(root.resolve() for root in roots)), home

    @property
    def roots(self) -> list[str]:
        """As they are shown."""
        return [self.place(root) for root in self._roots]

    def place(self, path: Path) -> str:
        """A path as a command is given it: relative to where commands are started, if it is below; never like an option."""
        place = str(path.relative_to(self.home)) if path.is_relative_to(self.home) else str(path)
        return f"./{place}" if place.startswith("-") else place

    def look(self) -> Iterator[Found]:
        """Every directory with a model below the roots."""
        left = [_MOST]
        # a root that lies in another one is looked at once
        others = frozenset(map(str, self._roots))
        paths = {path: None for root in self._roots for path in _walk(str(root), _DEPTH, left, others)}
        return filter(None, map(self._one, map(Path, paths)))

    def path(self, place: str) -> Path:
        """The directory at a place. Raises ``UsageError`` where no model was found."""
        found = self.at(place)
        if found is None:
            raise UsageError("there is no such model", where=place, expected="a place of the list of models")
        return found.path

    def describe(self, place: str) -> ModelDir:
        """Everything about one. Raises ``UsageError`` where no model was found."""
        return describe(self.path(place), place)

    def _one(self, path: Path) -> Found | None:
        for name in (*_ADAPTER, "config.json"):
            with suppress(OSError):
                return Found(path, self.place(path), (path / name).stat().st_mtime, name in _ADAPTER)
        return None


def _walk(directory: str, depth: int, left: list[int], others: frozenset[str]) -> Iterator[str]:
    """Directories with a model. Links are not followed; of a run only the names that runs write are looked at."""
    folders, rest = scan(directory, left, _SKIPPED)
    names = {entry.name for entry in rest}
    if names.intersection(_ADAPTER) or ("config.json" in names and any(n.endswith(".safetensors") for n in names)):
        yield directory
        return
    # a run has model, adapter and exported/step-N
    depth = _RUN_DEPTH if EVENTS_NAME in names else depth
    if depth > 1:
        for path in folders:
            if path not in others:
                yield from _walk(path, depth - 1, left, others)


def describe(path: Path, place: str) -> ModelDir:
    """Read the small files of a model directory, and the sizes of the others."""
    config = stored_object(path / "config.json")
    adapter = {**stored_object(path / "lora_config.json"), **stored_object(path / "adapter_config.json")}
    provenance = stored_object(path / "erniecore_manifest.json").get("provenance")
    provenance = provenance if isinstance(provenance, dict) else {}
    files = sizes(path)
    packed = config.get("quantization_config")
    kind: Kind = "adapter" if adapter else "packed" if isinstance(packed, dict) else "model"
    architectures = config.get("architectures")
    named = next(map(str, architectures), "") if isinstance(architectures, list) else ""
    context, parameters = config.get("max_position_embeddings"), provenance.get("parameters")
    return ModelDir(
        place=place, name=f"{path.parent.name}/{path.name}" if path.name in ("model", "adapter") else path.name,
        kind=kind, bytes=sum(files.values()), numbers=_numbers(config, packed, adapter),
        architecture=named or str(config.get("model_type", "")) or str(adapter.get("peft_type", "")),
        parameters=parameters if isinstance(parameters, int) else None, context=context if isinstance(context, int) else None,
        tokenizer=next((name for name in TOKENIZERS if name in files), ""), template=_has_template(path, files),
        media="vision_config" in config, origin=tuple(_origin(provenance, adapter)), changed=path.stat().st_mtime,
    )  # fmt: skip


def sizes(path: Path) -> dict[str, int]:
    """Bytes of each file in a directory; none where there is no directory."""
    found = {}
    with suppress(OSError), os.scandir(path) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.is_file():
                    found[entry.name] = entry.stat().st_size
    return found


def _numbers(config: dict[str, Any], packed: object, adapter: dict[str, Any]) -> str:
    if adapter:
        rank = adapter.get("r", adapter.get("lora_rank"))
        return f"r={rank}" if isinstance(rank, int) else ""
    if isinstance(packed, dict):
        return str(packed.get("quantizer") or packed.get("quant_method") or packed.get("quantization") or "")
    return str(config.get("dtype") or config.get("torch_dtype") or "")


def _has_template(path: Path, files: dict[str, int]) -> bool:
    return "chat_template.jinja" in files or "chat_template" in stored_object(path / "tokenizer_config.json")


def _origin(provenance: dict[str, Any], adapter: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key in ("made by", "name", "method", "base", "adapter", "quantizer", "steps", "tokens", "weights"):
        if provenance.get(key) not in (None, ""):
            yield key, str(provenance[key])
    if "base" not in provenance and adapter.get("base_model_name_or_path"):
        yield "base", str(adapter["base_model_name_or_path"])
