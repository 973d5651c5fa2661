"""Adapters of a server: each is a model of its own for clients, on the weights of one base. Light until one is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from erniecore.api import CheckpointError, ErnieError, UsageError
from erniecore.api.adapter import AdapterChoice
from erniecore.api.command import open_tokenizer
from erniecore.api.run import adapter_directory, adapter_plugin, base_difference, base_notes, load_adapter
from erniecore_openai.state import ServedModel


def check_adapters(adapters: Mapping[str, str], directory: Path, model: str) -> list[str]:
    """Look at saved adapters before the base is read; returns what to know of them.

    Args:
        adapters: name for clients -> directory of an adapter or a run. directory, model: of the base, and its name.

    Raises:
        UsageError: no such directory, a name that the base has, an adapter of another base (ERN-C021). PluginNotFound,
            CheckpointError: files that nobody reads, or that have changed.
    """
    notes = []
    for name, place in adapters.items():
        with _of_setting(name, place):
            if name == model:
                raise UsageError(
                    "the base has this name", found=name, fix="choose another one, or name the base: name="
                )
            found = adapter_directory(Path(place))
            adapter_plugin(found)
            if difference := base_difference(found, directory):
                raise UsageError(
                    "the adapter was trained on another base", found=f"{directory}: {difference}",
                    fix="serve it on its own base, or train it on this one", code="ERN-C021",
                )  # fmt: skip
            notes += [f"adapters.{name}: {note}" for note in base_notes(found, directory)]
    return notes


def with_adapters(model: Any, adapters: Mapping[str, str]) -> Any:
    """``model`` with all of them, none in use. Raises ``CheckpointError``, ``UsageError`` for one that does not fit."""
    for name, place in adapters.items():
        with _of_setting(name, place):
            model = load_adapter(model, Path(place), name)
    if not adapters:
        return model
    if not isinstance(model, AdapterChoice):
        raise UsageError(
            "these adapters cannot be chosen for each request", where="adapters", found=", ".join(adapters)
        )
    model.set_adapter(None)
    return model


def models_of(base: ServedModel, adapters: Mapping[str, str], directory: Path) -> list[ServedModel]:
    """What clients can name: the base, which is in ``directory``, then each adapter on it, with its own chat template."""
    return [base, *(_adapted(base, name, Path(place), directory) for name, place in adapters.items())]


def _adapted(base: ServedModel, name: str, place: Path, directory: Path) -> ServedModel:
    tokenizer, _ = open_tokenizer(directory, place)
    return replace(base, name=name, adapter=name, parent=base.name, tokenizer=tokenizer)


@contextmanager
def _of_setting(name: str, place: str) -> Iterator[None]:
    """Errors say which setting and which file."""
    try:
        yield
    except ErnieError as error:
        at = f"adapters.{name}: {error.where or place}"
        kind = (
            CheckpointError
            if isinstance(error, CheckpointError)
            else UsageError
            if isinstance(error, UsageError)
            else None
        )
        if kind is None:
            raise
        parts = {name: text for name, text in error.fields().items() if name not in ("message", "where")}
        raise kind(error.message, **{**parts, "where": at}) from error
