"""Hooks of corpora. See ``erniecore.hookspecs`` for the rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from erniecore.hookspecs.marker import hookspec

if TYPE_CHECKING:
    from erniecore.config.core import Source
    from erniecore.data.corpus import Corpus


class CorpusHooks:
    """Called on the corpus plugin that a data source belongs to; sources that belong to none are files with rows."""

    @hookspec(firstresult=True)
    def ernie_match_corpus(self, path: str) -> bool:
        """Whether a data source, as the user wrote it, is a corpus of this kind. Asked for every source of a run on every
        rank; looks at names alone, reads nothing.

        Example::

            @hookimpl
            def ernie_match_corpus(self, path):
                return path.endswith(".mds")
        """

    @hookspec(firstresult=True)
    def ernie_open_corpus(
        self, sources: Sequence[Source], vocab_size: int, eval_fraction: float
    ) -> tuple[Corpus, Corpus | None]:
        """The sources of one split, opened and checked, and what ``eval_fraction`` of them holds out for evaluation (``None``:
        nothing). Once per split on every rank, before the model is built. Raises ``DataError``.

        Example::

            @hookimpl
            def ernie_open_corpus(self, sources, vocab_size):
                from mypackage.corpus import MyCorpus
                return MyCorpus([source.path for source in sources], vocab_size), None
        """
