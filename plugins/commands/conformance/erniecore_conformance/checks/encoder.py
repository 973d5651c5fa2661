"""Checks for a method's encoder: records become samples. numpy only, over the toy tokenizer."""

from __future__ import annotations

from itertools import product
from typing import Any

from erniecore.api import RowError
from erniecore.api.data import Conversation, Document, Preference, UnpairedPreference
from erniecore.api.method import IGNORE, Sample
from erniecore_conformance.check import Check
from erniecore_conformance.exercise import encoder_of
from erniecore_conformance.expect import ensure, ensure_bits, ensure_equal
from erniecore_conformance.subjects import Subject
from erniecore_conformance.toys.data import toy_records

_ARRAYS = ("input_ids", "labels", "position_ids", "end_rows")
_RECORDS = (Conversation, Document, Preference, UnpairedPreference)


def _encoded(subject: Subject, max_length: int = 64) -> list[Sample]:
    encoder = encoder_of(subject, max_length)
    return [sample for record in toy_records(encoder.accepts) for sample in encoder.encode(record)]


def check_method_encoder_accepts_records(subject: Subject) -> None:
    """``accepts`` names record classes, and a record of each gives at least one sample."""
    encoder = encoder_of(subject)
    ensure(bool(encoder.accepts), "the encoder accepts nothing")
    for kind in encoder.accepts:
        ensure(kind in _RECORDS, f"accepts names {kind!r}, which is no record class")
        ensure(bool(encoder.encode(toy_records([kind])[0])), f"no sample of a {kind.__name__}")


def check_method_samples_are_well_formed(subject: Subject) -> None:
    """Arrays of one length: ids, labels and positions int64, ``end_rows`` int32; ids in the vocabulary; labels are
    ids or IGNORE, and at least one is a target; columns end after themselves and within the sample."""
    import numpy as np

    for sample in _encoded(subject):
        n = len(sample)
        for name in _ARRAYS:
            array = getattr(sample, name)
            dtype = np.int32 if name == "end_rows" else np.int64
            ensure_equal((array.dtype, array.shape), (np.dtype(dtype), (n,)), f"dtype and shape of {name}")
        for key, array in sample.fields.items():
            ensure_equal(array.shape[:1], (n,), f"length of field {key}")
        ensure(bool(((sample.input_ids >= 0) & (sample.input_ids < 260)).all()), "an id is outside the vocabulary")
        targets = sample.labels[sample.labels != IGNORE]
        ensure(bool(targets.size), "a sample has no target tokens")
        ensure(bool(((targets >= 0) & (targets < 260)).all()), "a label is outside the vocabulary")
        ensure(bool((sample.end_rows > np.arange(n)).all() and (sample.end_rows <= n).all()), "end_rows out of range")


def check_method_labels_are_shifted(subject: Subject) -> None:
    """The label of a target token is the next input id, or the token to stop with."""
    for sample in _encoded(subject):
        if (sample.position_ids[1:] != sample.position_ids[:-1] + 1).any():
            continue  # shared prompts: the next column is not the next token
        for t in range(len(sample) - 1):
            label, following = int(sample.labels[t]), int(sample.input_ids[t + 1])
            ensure(label in (IGNORE, following, 2), f"label of position {t} is {label}, the next input is {following}")


def check_method_encoder_respects_length(subject: Subject) -> None:
    """No sample is longer than ``max_length``; one that was cut says why, unless the record's samples hold all of its
    tokens; what cannot be cut is a ``RowError``."""
    whole = encoder_of(subject)
    for max_length, too_long in product((24, 12, 3), ("auto", "drop", "turns", "truncate")):
        encoder = encoder_of(subject, max_length, too_long)
        for record in toy_records(encoder.accepts):
            try:
                samples = encoder.encode(record)
            except RowError:
                continue
            ensure(bool(samples), f"neither a sample nor a RowError at {max_length} tokens")
            uncut = [sample.input_ids.tobytes() for sample in whole.encode(record)]
            complete = b"".join(sample.input_ids.tobytes() for sample in samples) == b"".join(uncut)
            for sample in samples:
                ensure(len(sample) <= max_length, f"{len(sample)} tokens, allowed {max_length}")
                same = sample.input_ids.tobytes() in uncut
                ensure(
                    same or complete or bool(sample.truncated),
                    f"a sample was cut to {max_length} tokens without saying so",
                )


def check_method_encoder_is_pure(subject: Subject) -> None:
    """Encoding a record twice, with other records between, gives the same bits."""
    encoder = encoder_of(subject)
    records = toy_records(encoder.accepts)
    first = [encoder.encode(record) for record in records]
    again = [encoder.encode(record) for record in reversed(records)][::-1]
    for one, two in zip(first, again, strict=True):
        ensure_equal(len(two), len(one), "number of samples")
        for a, b in zip(one, two, strict=True):
            for name in _ARRAYS:
                ensure_bits(getattr(b, name), getattr(a, name), f"{name} encoded again")


def check_method_samples_keep_their_origin(subject: Subject) -> None:
    """Every sample names the origin of its record."""
    encoder = encoder_of(subject)
    for record in toy_records(encoder.accepts):
        for sample in encoder.encode(record):
            ensure_equal(sample.origin, record.origin, "origin of a sample")


def check_method_encoder_travels_to_workers(subject: Subject) -> None:
    """The encoder can be sent to a worker process and does the same there."""
    from multiprocessing.reduction import ForkingPickler

    encoder: Any = encoder_of(subject)
    there = ForkingPickler.loads(ForkingPickler.dumps(encoder))
    for record in toy_records(encoder.accepts)[:2]:
        for a, b in zip(encoder.encode(record), there.encode(record), strict=True):
            ensure_bits(b.input_ids, a.input_ids, "ids from the encoder of a worker")


CHECKS = (
    Check(check_method_encoder_accepts_records),
    Check(check_method_samples_are_well_formed),
    Check(check_method_labels_are_shifted),
    Check(check_method_encoder_respects_length),
    Check(check_method_encoder_is_pure),
    Check(check_method_samples_keep_their_origin),
    Check(check_method_encoder_travels_to_workers),
)
