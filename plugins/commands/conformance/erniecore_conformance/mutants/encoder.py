"""Methods with one thing wrong in the encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from erniecore.api import RowError, hookimpl
from erniecore.api.data import Conversation, Document
from erniecore.api.method import Encoder, Record, Sample
from erniecore.api.model import Tokenizer
from erniecore.api.testing import NOWHERE
from erniecore_conformance.mutants.mutant import mutant
from erniecore_conformance.toys.method import ToyEncoder, ToyMethodPlugin


class Changed(ToyMethodPlugin):
    """A toy method with another encoder."""

    Coder: Callable[[Tokenizer, int], Any] = ToyEncoder

    @hookimpl
    def ernie_build_encoder(self, tokenizer: Tokenizer, max_length: int) -> Encoder:
        found: Encoder = type(self).Coder(tokenizer, max_length)
        return found


class AcceptsMore(Changed):
    """``accepts`` names documents, and they raise."""

    class Coder(ToyEncoder):
        accepts = (Conversation, Document)


class NarrowEnds(Changed):
    """Gives ``end_rows`` the dtype int64."""

    class Coder(ToyEncoder):
        def encode(self, record: Record) -> Sequence[Sample]:
            return [replace(s, end_rows=s.end_rows.astype("int64")) for s in super().encode(record)]


class Unshifted(Changed):
    """Labels are the inputs of the same position."""

    class Coder(ToyEncoder):
        def encode(self, record: Record) -> Sequence[Sample]:
            import numpy as np

            samples = super().encode(record)
            return [replace(s, labels=np.where(s.labels >= 0, s.input_ids, s.labels)) for s in samples]


class TooLong(Changed):
    """``max_length`` is not looked at."""

    class Coder(ToyEncoder):
        def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
            super().__init__(tokenizer, 10_000)


class CutsSilently(Changed):
    """The front is cut off, and nobody is told."""

    class Coder(ToyEncoder):
        def encode(self, record: Record) -> Sequence[Sample]:
            import numpy as np

            whole = ToyEncoder(self.tokenizer, 10_000).encode(record)[0]
            n = min(len(whole), self.max_length)
            if not (whole.labels[-n:] >= 0).any():
                raise RowError("nothing left")
            ends = np.full(n, n, dtype=np.int32)
            cut = replace(whole, input_ids=whole.input_ids[-n:], labels=whole.labels[-n:], end_rows=ends)
            return [replace(cut, position_ids=np.arange(n))]


class Counts(Changed):
    """Every second record loses its last token."""

    class Coder(ToyEncoder):
        calls = 0

        def encode(self, record: Record) -> Sequence[Sample]:
            import numpy as np

            self.calls += 1
            (s,) = super().encode(record)
            if self.calls < 9:
                return [s]
            labels = s.labels.copy()
            labels[-1] = -100
            return [replace(s, labels=labels, position_ids=np.arange(len(s)))]


class NoOrigin(Changed):
    """Samples do not know where they come from."""

    class Coder(ToyEncoder):
        def encode(self, record: Record) -> Sequence[Sample]:
            return [replace(s, origin=NOWHERE) for s in super().encode(record)]


class Local(Changed):
    """The encoder holds a function that cannot be sent anywhere."""

    class Coder(ToyEncoder):
        def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
            super().__init__(tokenizer, max_length)
            self.hook = lambda: None


MUTANTS = (
    mutant("method_encoder_accepts_records", AcceptsMore),
    mutant("method_samples_are_well_formed", NarrowEnds),
    mutant("method_labels_are_shifted", Unshifted),
    mutant("method_encoder_respects_length", TooLong),
    mutant("method_encoder_respects_length", CutsSilently),
    mutant("method_encoder_is_pure", Counts),
    mutant("method_samples_keep_their_origin", NoOrigin),
    mutant("method_encoder_travels_to_workers", Local),
)
