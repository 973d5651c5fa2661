"""Pull and push: what is here already asks the hub for nothing. Of the processes of a machine that want the same at once, such as
the ranks of a run that ``torchrun`` started, one asks, and the others find what it brought."""

from __future__ import annotations

from pathlib import Path

from erniecore.api import UsageError
from erniecore_hubs.clients import open_client
from erniecore_hubs.names import HubName, parse
from erniecore_hubs.places import endpoint
from erniecore_hubs.selecting import describing, of_data, of_model
from erniecore_hubs.store import Store

#: the selection of a model's files that are no weights
_DESCRIPTION = "description"


def pin(name: str, model: bool, *, newest: bool = False) -> HubName:
    """``name`` at a commit: its own, the one that was looked up before, or (``newest``) what the hub has now."""
    parsed = parse(name, model=model)
    store = _store(parsed)
    if parsed.pinned:
        return parsed
    commit = "" if newest else store.commit(parsed, model)
    if not commit:
        with store.asking(parsed, model):
            commit = "" if newest else store.commit(parsed, model)
            if not commit:
                commit = open_client(parsed, model).commit()
                store.remember(parsed, model, commit)
    return parsed.at(commit)


def pull_model(name: str, weights: bool = True) -> Path:
    """The directory of a model, fetched if it is not here whole, or (without ``weights``) what describes it."""
    pinned = pin(name, True)
    return _pull(pinned, True, "" if weights else _DESCRIPTION)[0]


def pull_data(name: str) -> Path:
    """The file of a data set that ``name`` has, or its directory, behind which stands the split."""
    pinned = pin(name, False)
    directory, files = _pull(pinned, False)
    if pinned.file and len(files) == 1:
        return directory / files[0]
    return directory / pinned.file if pinned.file else Path(f"{directory}{pinned.split}")


def _pull(pinned: HubName, model: bool, part: str = "") -> tuple[Path, list[str]]:
    store = _store(pinned)
    directory = store.directory(pinned, model)
    if files := _here(store, pinned, model, part):
        return directory, files
    with store.asking(pinned, model):
        if files := _here(store, pinned, model, part):
            return directory, files
        client = open_client(pinned, model)
        sizes = (of_model if model else of_data)(client.sizes(), pinned)
        if part:
            sizes = describing(sizes)
        client.fetch(sizes, directory)
        store.finish(pinned, model, {file: (directory / file).stat().st_size for file in sizes}, part)
    return directory, list(sizes)


def _here(store: Store, pinned: HubName, model: bool, part: str) -> list[str]:
    return store.files(pinned, model) or store.files(pinned, model, part)


def push_model(name: str, directory: Path, private: bool = False) -> str:
    """The name with the commit that has all files of ``directory``. Raises ``UsageError``."""
    parsed = parse(name, model=True)
    if parsed.pinned:
        expected = f"{parsed.hub}:owner/name or {parsed.hub}:owner/name@branch"
        raise UsageError("a commit cannot be written to", found=name, expected=expected)
    return str(parsed.at(open_client(parsed, True).upload(directory, private)))


def _store(name: HubName) -> Store:
    return Store(name.hub, endpoint(name))
