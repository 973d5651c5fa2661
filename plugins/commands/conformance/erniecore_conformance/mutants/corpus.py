"""Corpora with one thing wrong."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.api import hookimpl
from erniecore_conformance.mutants.mutant import mutant
from erniecore_conformance.toys.corpus import ToyCorpusPlugin

if TYPE_CHECKING:
    from erniecore.api.corpus import Corpus, Source

_opened = count()


class TakesEverything(ToyCorpusPlugin):
    """Files of rows too."""

    @hookimpl
    def ernie_match_corpus(self, path: str) -> bool:
        return "/" in path or path.endswith((".toytokens", ".jsonl"))


class NeverSure(ToyCorpusPlugin):
    """Knows the ending only in capital letters."""

    @hookimpl
    def ernie_match_corpus(self, path: str) -> bool:
        return path.endswith(".TOYTOKENS")


class _Changed(ToyCorpusPlugin):
    """Opens as the toy does, then :meth:`change`."""

    def change(self, corpus: Any) -> None:
        """Break the corpus; overridden by mutants."""

    @hookimpl
    def ernie_open_corpus(
        self, sources: Sequence[Source], vocab_size: int, eval_fraction: float
    ) -> tuple[Corpus, Corpus | None]:
        from erniecore_conformance.toys.corpus_files import open_corpus

        corpus, evaluation = open_corpus(Path(sources[0].path), vocab_size, eval_fraction)
        self.change(corpus)
        return corpus, evaluation


class TooLong(_Changed):
    """Samples of twice the length."""

    def change(self, corpus: Any) -> None:
        load = type(corpus).load

        def longer(settings: Any) -> tuple[Any, Any]:
            dataset, sampler = load(corpus, settings)
            dataset.length *= 2
            return dataset, sampler

        corpus.load = longer


class LosesTheLast(_Changed):
    """The sampler ends one sample early."""

    def change(self, corpus: Any) -> None:
        load = type(corpus).load

        def shorter(settings: Any) -> tuple[Any, Any]:
            dataset, sampler = load(corpus, settings)
            sampler.num_sequences = lambda epoch: len(dataset) - 1
            return dataset, sampler

        corpus.load = shorter


class OtherFiles(_Changed):
    """What it says of its files is new each time."""

    def change(self, corpus: Any) -> None:
        contents = corpus.contents()
        corpus.contents = lambda: [{**file, "opened": next(_opened)} for file in contents]


class AnyIds(ToyCorpusPlugin):
    """Ids are not compared with the vocabulary."""

    @hookimpl
    def ernie_open_corpus(
        self, sources: Sequence[Source], vocab_size: int, eval_fraction: float
    ) -> tuple[Corpus, Corpus | None]:
        from erniecore_conformance.toys.corpus_files import open_corpus

        return open_corpus(Path(sources[0].path), 256, eval_fraction)


class HoldsNothingOut(ToyCorpusPlugin):
    """``eval_fraction`` is passed over."""

    @hookimpl
    def ernie_open_corpus(
        self, sources: Sequence[Source], vocab_size: int, eval_fraction: float
    ) -> tuple[Corpus, Corpus | None]:
        from erniecore_conformance.toys.corpus_files import open_corpus

        return open_corpus(Path(sources[0].path), vocab_size, 0.0)


MUTANTS = (
    mutant("corpus_leaves_rows_alone", TakesEverything),
    mutant("corpus_recognizes_its_own", NeverSure),
    mutant("corpus_samples_are_well_formed", TooLong, also=("corpus_splits_for_evaluation",)),
    mutant("corpus_sampler_takes_every_sample", LosesTheLast),
    mutant("corpus_opens_identically_twice", OtherFiles),
    mutant("corpus_refuses_foreign_ids", AnyIds),
    mutant("corpus_splits_for_evaluation", HoldsNothingOut),
)
