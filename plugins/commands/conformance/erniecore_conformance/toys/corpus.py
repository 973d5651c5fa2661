"""A good corpus: one file of token ids as bytes, cut into samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from erniecore.api import hookimpl
from erniecore.api.data import CorpusPlugin, Document

if TYPE_CHECKING:
    from erniecore.api.corpus import Corpus, Source


class ToyCorpusPlugin(CorpusPlugin):
    """Opens files that end in ``.toytokens``."""

    name = "toy"
    summary = "token ids as bytes, for the conformance kit"
    title = "toy tokens"
    records = (Document,)
    remedy = "train on the others in a run of their own"

    def conformance_corpus(self, folder: Path) -> str:
        """Write a file with one hundred ids."""
        path = folder / "ids.toytokens"
        path.write_bytes(bytes(range(100)))
        return str(path)

    @hookimpl
    def ernie_match_corpus(self, path: str) -> bool:
        return path.endswith(".toytokens")

    @hookimpl
    def ernie_open_corpus(
        self, sources: Sequence[Source], vocab_size: int, eval_fraction: float
    ) -> tuple[Corpus, Corpus | None]:
        from erniecore_conformance.toys.corpus_files import open_corpus

        return open_corpus(Path(sources[0].path), vocab_size, eval_fraction)


plugin = ToyCorpusPlugin()
