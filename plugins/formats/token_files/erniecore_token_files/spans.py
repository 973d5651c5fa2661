"""Spans of token files: whole documents one after the other, cut into samples of ``max_seq_len``, places in the file computed
and never listed. Documents that share a sample do not attend to each other, as packed samples do not.

Every pair of neighboring tokens of a document is a target exactly once per epoch; the last token of a document predicts
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from erniecore.api.data import IGNORE, Origin, Sample
from erniecore_token_files.names import files_of
from erniecore_token_files.reading import TokenFile


@dataclass(frozen=True, eq=False)
class TokenSpan:
    """Tokens start..stop-1 of a file: some of its documents, whole ones."""

    file: TokenFile
    start: int
    stop: int

    @classmethod
    def whole(cls, file: TokenFile) -> TokenSpan:
        """The span of all tokens of a file."""
        return cls(file, 0, file.num_tokens)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all documents."""
        return self.stop - self.start

    @property
    def num_documents(self) -> int:
        """Whole documents in it."""
        return self.file.document(self.stop - 1) - self.file.document(self.start) + 1

    def num_windows(self, length: int) -> int:
        """Samples of at most ``length`` tokens; the last token of all is a target only."""
        return max(0, -(-(self.num_tokens - 1) // length))

    def sample(self, window: int, length: int) -> Sample:
        """The window's tokens, each with the next one of its document as its label."""
        start = self.start + window * length
        stop = min(start + length, self.stop - 1)
        n = stop - start
        ids = self.file.tokens[start : stop + 1].astype(np.int64)
        begins = self.file.starts_within(start, stop + 1) - start
        labels = ids[1:].copy()
        labels[begins - 1] = IGNORE
        edges = np.concatenate([[0], begins[begins < n], [n]])
        lengths = np.diff(edges)
        return Sample(
            input_ids=ids[:-1],
            labels=labels,
            position_ids=np.arange(n) - np.repeat(edges[:-1], lengths),
            end_rows=np.repeat(edges[1:], lengths).astype(np.int32),
            origin=Origin(str(files_of(self.file.prefix)[0]), self.file.document(start) + 1),
        )


def split_tail(file: TokenFile, fraction: float) -> tuple[TokenSpan, TokenSpan | None]:
    """The file without its last documents, and these: as close to ``fraction`` of the tokens as whole documents allow.

    Nothing is held out where that would be none of the documents or all of them.
    """
    target = round(file.num_tokens * (1 - fraction))
    here = file.document(min(target, file.num_tokens - 1))
    cut = min((file.start(here), file.start(here + 1)), key=lambda start: abs(start - target))
    if not 0 < cut < file.num_tokens:
        return TokenSpan.whole(file), None
    return TokenSpan(file, 0, cut), TokenSpan(file, cut, file.num_tokens)
