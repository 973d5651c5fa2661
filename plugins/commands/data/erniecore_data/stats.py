"""Numbers about data: turns, roles and text lengths of records; token lengths, share of loss tokens and fill rate of samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from erniecore.api.data import (
    Conversation,
    Document,
    Draw,
    Encoder,
    Message,
    Preference,
    UnpairedPreference,
    media_reader,
)
from erniecore.api.method import Record
from erniecore.api.rows import ArrayDataset, pack


class RecordStats:
    """Counts over records as they pass."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.roles: Counter[str] = Counter()
        self.turns: Counter[int] = Counter()
        self.extras: Counter[str] = Counter()
        self.characters: list[int] = []

    def add(self, record: Record) -> None:
        """Add one record to the counts."""
        self.kinds[type(record).__name__] += 1
        messages = messages_of(record)
        self.roles.update(m.role for m in messages)
        self.turns[sum(m.role == "user" for m in messages)] += 1
        if isinstance(record, Document):
            self.characters.append(len(record.text))
        else:
            self.characters.append(sum(len(m.content) + len(m.reasoning) for m in messages))
            self.extras["with system text"] += any(m.role == "system" for m in messages)
            self.extras["with reasoning"] += any(m.reasoning for m in messages)
            self.extras["with tools"] += bool(record.tools)
            self.extras["with calls"] += any(m.tool_calls for m in messages)
            self.extras["with turns without loss"] += any(m.role == "assistant" and not m.learn for m in messages)

    def as_dict(self) -> dict[str, Any]:
        """The counts as JSON values."""
        return {
            "records": sum(self.kinds.values()),
            "kinds": dict(sorted(self.kinds.items())),
            "roles": dict(sorted(self.roles.items())),
            "turns": {str(k): v for k, v in sorted(self.turns.items())},
            "extras": {k: v for k, v in sorted(self.extras.items()) if v},
            "characters": summary(self.characters),
        }


def messages_of(record: Record) -> tuple[Message, ...]:
    """All messages of a record, both answers of a preference included."""
    if isinstance(record, Conversation | UnpairedPreference):
        return record.messages
    if isinstance(record, Preference):
        return record.prompt + record.chosen + record.rejected
    return ()


def token_stats(dataset: ArrayDataset, capacity: int) -> dict[str, Any]:
    """Lengths, loss tokens, and how full sequences of ``capacity`` tokens get."""
    lengths = dataset.lengths.tolist()
    return {
        "samples": len(dataset),
        "tokens": dataset.num_tokens,
        "loss_tokens": dataset.num_loss_tokens,
        "truncated": len(dataset.truncated),
        "lengths": summary(lengths),
        "histogram": histogram(lengths),
        "fill_rate": {
            "greedy": fill_rate(lengths, capacity, "greedy"),
            "sequential": fill_rate(lengths, capacity, "sequential"),
            "none": sum(lengths) / (len(lengths) * capacity) if lengths else 1.0,
        },
    }


def patch_stats(dataset: ArrayDataset, encoder: Encoder) -> dict[str, Any] | None:
    """Patches of images and videos, which cost a vision tower what tokens cost a model (``data.max_patches``); ``None`` where
    no sample has any."""
    reader = media_reader(encoder)
    counts = [sum(map(reader.patches, media)) for _, media in dataset.media_items()] if reader is not None else []
    return {"samples": len(counts), "patches": sum(counts), "per_sample": summary(counts)} if counts else None


def change_stats(dataset: ArrayDataset, encoder: Encoder, seed: int) -> dict[str, Any]:
    """How many images the first epoch of a run with this seed changes at random, and by which transforms."""
    reader, found = media_reader(encoder), Counter[str]()
    assert reader is not None
    items = [i for i, _ in dataset.media_items()]
    drawn = [changes for i in items for changes in reader.changes(dataset[i], Draw(seed, 0))]
    kinds = [reader.seen(text).kind for i in items for text in dataset[i].media]
    for changes in drawn:
        found.update(str(change).partition(" ")[0] for change in changes)
    return {"images": kinds.count("image"), "changed": sum(map(bool, drawn)), "transforms": dict(found.most_common())}


def fill_rate(lengths: Sequence[int], capacity: int, packing: str) -> float:
    """Share of the positions of packed sequences that hold a token; 1.0 without samples. ``packing``: ``greedy`` or
    ``sequential``, as ``data.packing`` of a run."""
    count = len(pack(np.asarray(lengths, np.int64), capacity, packing))
    return sum(lengths) / (count * capacity) if count else 1.0


def summary(values: Sequence[int]) -> dict[str, float]:
    """Smallest, mean, quantiles and largest."""
    if not values:
        return {}
    array = np.asarray(values)
    half, most, nearly = (int(np.percentile(array, q)) for q in (50, 90, 99))
    return {
        "min": int(array.min()),
        "mean": round(float(array.mean()), 1),
        "p50": half,
        "p90": most,
        "p99": nearly,
        "max": int(array.max()),
    }


def histogram(values: Sequence[int]) -> list[dict[str, int]]:
    """Counts in bins that double: 1, 2–3, 4–7, …; from the first to the last that holds something."""
    counts = Counter(max(int(v), 1).bit_length() - 1 for v in values)
    if not counts:
        return []
    bins = range(min(counts), max(counts) + 1)
    return [{"from": 1 << b, "to": (2 << b) - 1, "count": counts[b]} for b in bins]
