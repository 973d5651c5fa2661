"""The plugin objects of token files: the corpus, and what commands that read rows say of such a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from erniecore.api import hookimpl
from erniecore.api.data import CorpusPlugin, Document

if TYPE_CHECKING:
    from erniecore.api.corpus import Corpus, Source


class TokenFiles(CorpusPlugin):
    """Pairs ``PREFIX.bin`` and ``PREFIX.idx``, or directories of such."""

    name = "token-files"
    summary = "Indexed token files of Megatron-LM, PaddleFormers and ERNIEKit: PREFIX.bin and PREFIX.idx"
    title = "token files"
    records = (Document,)
    remedy = "make token files of the others too: ernie data build FILE --tokenizer DIR --out PREFIX"

    def conformance_corpus(self, folder: Path) -> str:
        """Four documents of 25 tokens."""
        import numpy as np

        from erniecore_token_files.writing import TokenFileWriter

        with TokenFileWriter(folder / "tokens", np.dtype(np.uint16)) as writer:
            writer.add(np.arange(100), np.full(4, 25))
        return str(folder / "tokens")

    @hookimpl
    def ernie_match_corpus(self, path: str) -> bool:
        """By the names of the files."""
        from erniecore_token_files.names import prefixes_of

        return bool(prefixes_of(path))

    @hookimpl
    def ernie_open_corpus(
        self, sources: Sequence[Source], vocab_size: int, eval_fraction: float
    ) -> tuple[Corpus, Corpus | None]:
        """Mapped into memory; nothing is copied."""
        from erniecore_token_files.corpus import open_corpus

        return open_corpus(sources, vocab_size, eval_fraction)


plugin = TokenFiles()
