"""Checks for corpora, over a small one that the plugin writes (``conformance_corpus``)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from erniecore.api import DataError
from erniecore.api.method import IGNORE
from erniecore_conformance.check import Check
from erniecore_conformance.expect import NotApplicable, ensure, ensure_equal, ensure_raises
from erniecore_conformance.subjects import Subject

#: sources that are read row by row, or that are nothing
ROWS = (
    "",
    "rows.jsonl",
    "rows.json",
    "rows.jsonl.gz",
    "text.txt",
    "no/such/directory",
    "s3://bucket/rows.jsonl",
    "é 日本",
)
VOCABULARY, _LENGTH = 256, 16


def _written(subject: Subject, folder: str) -> str:
    """A corpus of ids below ``VOCABULARY`` in ``folder``, as the user would name it."""
    write = getattr(subject.plugin, "conformance_corpus", None)
    if write is None:
        raise NotApplicable("the plugin offers no conformance_corpus()")
    return str(write(Path(folder)))


def _opened(subject: Subject, path: str, vocab_size: int = VOCABULARY, eval_fraction: float = 0.0) -> tuple[Any, Any]:
    """Both splits of the corpus at ``path``."""
    from erniecore.api.corpus import Source

    sources = [Source(path=path)]
    found: tuple[Any, Any] = subject.call(
        "ernie_open_corpus", sources=sources, vocab_size=vocab_size, eval_fraction=eval_fraction
    )
    return found


def _loaded(corpus: Any) -> tuple[Any, Any]:
    """Data set and batch sampler with short samples."""
    from erniecore.api.corpus import SamplerSettings

    found: tuple[Any, Any] = corpus.load(SamplerSettings(max_seq_len=_LENGTH, batch_size=2))
    return found


def check_corpus_leaves_rows_alone(subject: Subject) -> None:
    """``ernie_match_corpus`` gives False for files of rows and for names of nothing; it never raises."""
    for path in ROWS:
        ensure_equal(subject.call("ernie_match_corpus", path=path), False, f"match of {path!r}")


def check_corpus_recognizes_its_own(subject: Subject) -> None:
    """``ernie_match_corpus`` gives True for what ``conformance_corpus`` wrote."""
    with tempfile.TemporaryDirectory() as folder:
        path = _written(subject, folder)
        ensure_equal(subject.call("ernie_match_corpus", path=path), True, f"match of {path!r}")


def check_corpus_samples_are_well_formed(subject: Subject) -> None:
    """Samples have arrays of one length, not above ``max_seq_len``; ids are in the vocabulary, labels too or IGNORE."""
    with tempfile.TemporaryDirectory() as folder:
        dataset, _ = _loaded(_opened(subject, _written(subject, folder))[0])
        ensure(len(dataset) > 0, "the data set has no samples")
        for sample in (dataset[index] for index in range(len(dataset))):
            sizes = {len(array) for array in (sample.input_ids, sample.labels, sample.position_ids, sample.end_rows)}
            ensure(len(sizes) == 1, f"arrays of {sorted(sizes)} elements in one sample")
            ensure(0 < max(sizes) <= _LENGTH, f"a sample of {max(sizes)} tokens with max_seq_len {_LENGTH}")
            targets = sample.labels[sample.labels != IGNORE]
            for ids in (sample.input_ids, targets):
                ensure(bool(((ids >= 0) & (ids < VOCABULARY)).all()), "a token id is outside of the vocabulary")


def check_corpus_sampler_takes_every_sample(subject: Subject) -> None:
    """The sequences of an epoch hold every sample once."""
    with tempfile.TemporaryDirectory() as folder:
        dataset, sampler = _loaded(_opened(subject, _written(subject, folder))[0])
        taken = [index for sequence in sampler.sequences(0, 0, sampler.num_sequences(0)) for index in sequence]
        ensure_equal(sorted(taken), list(range(len(dataset))), "samples of an epoch")


def check_corpus_opens_identically_twice(subject: Subject) -> None:
    """Opened again, the fingerprint, the files and the order of an epoch are the same."""
    with tempfile.TemporaryDirectory() as folder:
        path, found = _written(subject, folder), []
        for _ in range(2):
            corpus, _evaluation = _opened(subject, path)
            dataset, sampler = _loaded(corpus)
            order = sampler.sequences(0, 0, sampler.num_sequences(0))
            found.append((dataset.fingerprint(), corpus.contents(), [list(sequence) for sequence in order]))
        ensure_equal(found[1], found[0], "what was opened again")


def check_corpus_refuses_foreign_ids(subject: Subject) -> None:
    """Ids beyond the vocabulary are a ``DataError`` that says where."""
    with tempfile.TemporaryDirectory() as folder:
        path = _written(subject, folder)
        error = ensure_raises(DataError, lambda: _loaded(_opened(subject, path, vocab_size=2)[0]), "ids above 1")
        ensure(bool(getattr(error, "where", "")), "the error does not say where")


def check_corpus_splits_for_evaluation(subject: Subject) -> None:
    """With ``eval_fraction`` 0 nothing is held out; with a half, both splits have samples, and neither has all."""
    with tempfile.TemporaryDirectory() as folder:
        path = _written(subject, folder)
        whole, nothing = _opened(subject, path)
        ensure(nothing is None, "something is held out with eval_fraction 0")
        total = len(_loaded(whole)[0])
        for name, split in zip(("training", "evaluation"), _opened(subject, path, eval_fraction=0.5), strict=True):
            size = len(_loaded(split)[0]) if split is not None else 0
            ensure(0 < size < total, f"{size} of {total} samples in the {name} split with eval_fraction 0.5")


CHECKS = (
    Check(check_corpus_leaves_rows_alone),
    Check(check_corpus_recognizes_its_own),
    Check(check_corpus_samples_are_well_formed),
    Check(check_corpus_sampler_takes_every_sample),
    Check(check_corpus_opens_identically_twice),
    Check(check_corpus_refuses_foreign_ids),
    Check(check_corpus_splits_for_evaluation),
)
