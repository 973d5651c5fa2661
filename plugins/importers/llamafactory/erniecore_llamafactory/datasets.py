"""``dataset_info.json``: which file a data set is, and how its rows are read. Pure, but for :func:`read_info`.

An entry becomes one of our data sources; what has no counterpart raises ``ValueError`` with words for the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from erniecore.api.files import read_json

FILE = "dataset_info.json"
#: keys of an entry that name a place on a hub or in a cloud
REMOTE = ("hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name")
#: those of them that sources can name, and the hub's name there
HUBS: Mapping[str, str] = {"hf_hub_url": "hf", "ms_hub_url": "ms"}
#: column of an entry -> field of our format
FIELDS: Mapping[str, Mapping[str, str]] = {
    "alpaca": {
        "prompt": "instruction", "query": "input", "response": "output", "history": "history", "system": "system",
        "chosen": "chosen", "rejected": "rejected", "kto_tag": "label",
    },
    "messages": {
        "messages": "messages", "tools": "tools", "system": "system", "chosen": "chosen", "rejected": "rejected",
        "kto_tag": "label",
    },
}  # fmt: skip
#: further names of a field that our formats read by themselves
NATIVE = {"messages": ("conversations",), "label": ("kto_tag",)}
MEDIA = ("images", "videos", "audios")
#: tag of an entry -> what rows of the format ``messages`` may say
TAGS = {
    "role_tag": ("from", "role"),
    "content_tag": ("value", "content"),
    "user_tag": ("human", "user"),
    "assistant_tag": ("gpt", "assistant"),
    "observation_tag": ("observation", "tool", "function"),
    "function_tag": ("function_call",),
    "system_tag": ("system",),
}
FORMATS = {"alpaca": "alpaca", "sharegpt": "messages", "openai": "messages"}


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """The file's content. ``problem``: why there is none."""

    directory: str = "data"
    entries: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set as a source of ours.

    Attributes:
        path: of the file. format: ours. columns: settings of the format, without the fields that it finds by itself.
        field: for documents, which field holds the text. notes: what cannot be as it was.
    """

    path: str
    format: str
    columns: Mapping[str, str] = field(default_factory=dict)
    field: str = ""
    notes: tuple[str, ...] = ()


def read_info(directory: str) -> DatasetInfo:
    """``dataset_info.json`` of a directory."""
    path = Path(directory) / FILE
    try:
        content = read_json(path)
    except OSError as error:
        return DatasetInfo(
            directory, problem=f"{path} cannot be read: {error.strerror}; name its directory: dataset_dir=DIR"
        )
    except ValueError as error:
        return DatasetInfo(directory, problem=f"{path} is no JSON: {error}")
    if not isinstance(content, dict):
        return DatasetInfo(directory, problem=f"{path} must be an object of data sets")
    return DatasetInfo(directory, content)


def _on_hub(entry: Mapping[str, Any]) -> str:
    """The name of a data set on a hub, as sources have it; empty where the entry has a file, or names only a part of a hub's
    data set, which the file's name there would have to say."""
    if entry.get("file_name") or entry.get("subset") or entry.get("folder"):
        return ""
    found = next((f"{hub}:{entry[key]}" for key, hub in HUBS.items() if isinstance(entry.get(key), str)), "")
    return f"{found}:{entry.get('split') or 'train'}" if found else ""


def data_set(name: str, info: DatasetInfo, stage: str) -> DataSet:
    """The data set ``name`` for a stage (pt, sft, rm, dpo, kto). Raises ``ValueError``."""
    if name not in info.entries:
        known = ", ".join(list(info.entries)[:8]) or "none"
        raise ValueError(f"{FILE} has no data set {name}; it has {known}{' …' * (len(info.entries) > 8)}")
    entry = info.entries[name]
    if not isinstance(entry, dict):
        raise ValueError(f"{name} must be an object in {FILE}")
    file = entry.get("file_name")
    hub = _on_hub(entry)
    if not hub and (not isinstance(file, str) or not file):
        place = next((f"{key} {entry[key]}" for key in REMOTE if entry.get(key)), "nowhere")
        raise ValueError(f"{name} is at {place}, and nothing is downloaded: fetch it, then give its entry a file_name")
    kind = str(entry.get("formatting") or "alpaca")
    if kind not in FORMATS:
        raise ValueError(f"{name}: formatting must be one of {', '.join(FORMATS)} (got {kind})")
    columns = _texts(name, entry, "columns")
    path = hub or str(Path(info.directory) / str(file))
    if stage == "pt":
        if kind != "alpaca":
            raise ValueError(f"{name}: stage pt reads documents, and {kind} has conversations")
        return DataSet(path, "text", field=columns.get("prompt", "instruction"), notes=_notes(name, entry, columns))
    _fits(name, entry, columns, stage)
    if kind != "alpaca":
        _check_tags(name, _texts(name, entry, "tags"))
    form = FORMATS[kind]
    fields = FIELDS[form]
    strange = [column for column in columns if column not in fields and column not in MEDIA]
    if strange:
        raise ValueError(f"{name}: {kind} has no column {strange[0]}")
    renamed = {
        fields[column]: theirs
        for column, theirs in columns.items()
        if column in fields and theirs != fields[column] and theirs not in NATIVE.get(fields[column], ())
    }
    return DataSet(path, form, renamed, notes=_notes(name, entry, columns))


def _texts(name: str, entry: Mapping[str, Any], key: str) -> dict[str, str]:
    """The mapping of texts at a key of an entry; null values say nothing."""
    value = entry.get(key) or {}
    if not isinstance(value, dict) or any(not isinstance(v, str) for v in value.values() if v is not None):
        raise ValueError(f"{name}: {key} must be an object of texts")
    return {k: v for k, v in value.items() if v is not None}


def _fits(name: str, entry: Mapping[str, Any], columns: Mapping[str, str], stage: str) -> None:
    """Whether a stage can learn from the rows."""
    if stage in ("dpo", "rm") and not entry.get("ranking"):
        raise ValueError(f"{name}: stage {stage} compares two answers, and the data set has no `ranking: true`")
    if stage == "sft" and entry.get("ranking"):
        raise ValueError(f"{name}: stage sft learns one answer, and the data set has `ranking: true`")
    if stage == "kto" and "kto_tag" not in columns:
        raise ValueError(f"{name}: stage kto learns from rated answers, and the data set has no column kto_tag")


def _check_tags(name: str, tags: Mapping[str, str]) -> None:
    for tag, said in tags.items():
        if tag not in TAGS:
            raise ValueError(f"{name}: there is no {tag}")
        if said not in TAGS[tag]:
            raise ValueError(f"{name}: {tag} is {said}; rows are read that say {' or '.join(TAGS[tag])}")


def _notes(name: str, entry: Mapping[str, Any], columns: Mapping[str, str]) -> tuple[str, ...]:
    notes = []
    if "audios" in columns:
        notes.append(f"{name}: rows with sounds are dropped and counted (data.max_drop)")
    for media in ("images", "videos"):
        if columns.get(media, media) != media:
            notes.append(f"{name}: {media} are read from the column {media}, not {columns[media]}: rename it")
    if entry.get("num_samples"):
        notes.append(f"{name}: every row is used, not {entry['num_samples']} (num_samples)")
    for key in ("subset", "split", "folder"):
        if entry.get(key) and entry[key] != "train":
            notes.append(f"{name}: {key} {entry[key]} belongs to a data set of a hub; the whole file is read")
    return tuple(notes)
