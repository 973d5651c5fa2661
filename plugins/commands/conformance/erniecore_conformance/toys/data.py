"""Eight toy records of every record type, six toy answers, and a collate function written from the contract in
``types/samples.py`` alone, so that checks do not lean on the data pipeline. numpy inside functions.

Letters: B batch, S sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from erniecore.api.data import Conversation, Document, Message, Preference, UnpairedPreference
from erniecore.api.method import IGNORE, Batch, Origin, Record, Sample
from erniecore.api.reward import Completion

_ANIMALS = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen")


def _say(index: int, answer: str) -> tuple[Message, ...]:
    return (Message("user", f"Q{index}?"), Message("assistant", answer))


def _conversation(i: int) -> Record:
    return Conversation(_say(i, _ANIMALS[i]), origin=Origin("toy.jsonl", i + 1))


def _document(i: int) -> Record:
    return Document(f"{i} {_ANIMALS[i]} " * 2, origin=Origin("toy.jsonl", i + 1))


def _preference(i: int) -> Record:
    chosen, rejected = (Message("assistant", w) for w in (_ANIMALS[i], _ANIMALS[i - 1] + "s"))
    return Preference(_say(i, "")[:1], (chosen,), (rejected,), origin=Origin("toy.jsonl", i + 1))


def _rated(i: int) -> Record:
    return UnpairedPreference(_say(i, _ANIMALS[i]), desirable=i % 2 == 0, origin=Origin("toy.jsonl", i + 1))


_MAKERS: dict[type, Callable[[int], Record]] = {
    Conversation: _conversation,
    Document: _document,
    Preference: _preference,
    UnpairedPreference: _rated,
}


def toy_records(accepts: Sequence[type]) -> list[Record]:
    """Eight records of the first type in ``accepts`` that this module can make; lengths vary."""
    maker = next(_MAKERS[kind] for kind in accepts if kind in _MAKERS)
    return [maker(i) for i in range(8)]


def toy_completions() -> list[Completion]:
    """Six completions: right, wrong, cut off, thought about, empty, and right but long."""
    rows = (
        ("4", "", "4", True),
        ("It is 5.", "", "4", True),
        ("The answer is f", "", "42", False),
        ("7", "3 and 4 make 7", "7", True),
        ("", "", "ant", True),
        ("ant ant ant ant 4", "", "ant 4", True),
    )
    return [
        Completion(
            prompt=f"<s>User: Q{i}?\nAssistant: ",
            text=f"<think>{reasoning}</think>{answer}" if reasoning else answer,
            content=answer,
            reasoning=reasoning,
            reference=reference,
            finished=finished,
            num_tokens=len(answer) + len(reasoning) + 1,
        )
        for i, (answer, reasoning, reference, finished) in enumerate(rows)
    ]


def toy_rewards(completions: Sequence[Completion]) -> list[float]:
    """A reward that differs between completions, whatever they say: from the sum of their bytes."""
    return [sum(c.text.encode()) % 8 / 8 for c in completions]


def collate(rows: Sequence[Sequence[Sample]], *, padding: int = 0, pad_id: int = 0) -> Batch:
    """Each row's samples joined, then padded on the right to the longest row plus ``padding`` columns."""
    import numpy as np

    width = max(sum(len(s) for s in row) for row in rows) + padding
    samples = [s for row in rows for s in row]

    def lay(fill: int, pick: Callable[[Sample], object], dtype: type) -> np.ndarray:
        out: np.ndarray = np.full((len(rows), width), fill, dtype=dtype)
        for b, row in enumerate(rows):
            joined = np.concatenate([np.asarray(pick(s)) for s in row])
            out[b, : len(joined)] = joined
        return out

    ends = np.broadcast_to(np.arange(width, dtype=np.int32), (len(rows), width)).copy()
    for b, row in enumerate(rows):
        offset = 0
        for s in row:
            ends[b, offset : offset + len(s)] = s.end_rows + offset
            offset += len(s)
    fields = {
        key: lay(0, lambda s, k=key: s.fields[k], np.asarray(samples[0].fields[key]).dtype.type)  # type: ignore[misc]
        for key in samples[0].fields
    }
    return Batch(
        input_ids=lay(pad_id, lambda s: s.input_ids, np.int64),
        labels=lay(IGNORE, lambda s: s.labels, np.int64),
        position_ids=lay(0, lambda s: s.position_ids, np.int64),
        startend_row_indices=ends[:, None, :, None],
        fields=fields,
        num_tokens=sum(len(s) for s in samples),
        num_samples=len(samples),
        origins=tuple(s.origin for s in samples),
    )
