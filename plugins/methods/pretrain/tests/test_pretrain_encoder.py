"""Documents to pieces: no token lost, every pair once, whatever the length."""

import itertools

import numpy as np
import pytest
from erniecore_conformance.toys.tokenizer import ToyTokenizer
from erniecore_pretrain.encoder import PretrainEncoder
from erniecore_pretrain.plugin import plugin
from hypothesis import given, settings
from hypothesis import strategies as st

from erniecore.api import ConfigError, RowError
from erniecore.api.data import Document
from erniecore.api.method import IGNORE, Origin
from erniecore.data.encode import build_encoder
from erniecore.host import assemble

END = 2


class Letters:
    """a -> 3, b -> 4, …"""

    eos_id = END

    def encode(self, text):
        return [ord(c) - ord("a") + 3 for c in text]


def encode(text, length, **options):
    return PretrainEncoder(Letters(), length, **options).encode(Document(text, Origin("f.txt", 7)))


TEXTS = st.text(alphabet="abcdefghij", min_size=1, max_size=60)


@settings(deadline=None, max_examples=50)
@given(TEXTS, st.integers(2, 20), st.booleans())
def test_every_pair_is_learned_once_and_in_order(text, length, keep_end):
    ids = [*Letters().encode(text), END]
    pieces = encode(text, length, keep_end=keep_end)
    learned = [
        (a, b) for s in pieces for a, b in zip(s.input_ids.tolist(), s.labels.tolist(), strict=True) if b != IGNORE
    ]
    assert learned == list(itertools.pairwise(ids))
    read = np.concatenate([s.input_ids for s in pieces]).tolist()
    assert read == (ids if keep_end else ids[:-1])
    assert all(len(s) == length for s in pieces[:-1])
    assert 1 <= len(pieces[-1]) <= length


def test_pieces_are_plain_causal_samples_from_position_0():
    first, second = encode("abcdef", 4)
    assert first.labels.tolist() == [4, 5, 6, 7]
    assert second.labels.tolist() == [8, END]
    for piece in (first, second):
        assert piece.position_ids.tolist() == list(range(len(piece)))
        assert set(piece.end_rows.tolist()) == {len(piece)}
        assert piece.origin == ("f.txt", 7)
        assert not piece.truncated


def test_a_kept_end_predicts_nothing():
    (piece,) = encode("ab", 8, keep_end=True)
    assert piece.input_ids.tolist() == [3, 4, END]
    assert piece.labels.tolist() == [4, END, IGNORE]


@pytest.mark.parametrize("text", ["", "  \n\t"])
def test_blank_documents_are_refused(text):
    with pytest.raises(RowError) as caught:
        encode(text, 8)
    assert caught.value.code == "ERN-D043"


def test_a_choice_for_long_rows_is_refused_since_documents_are_always_cut_into_pieces():
    with pytest.raises(
        ConfigError, match=r"data\.too_long: the method shortens rows in its own way: use auto \(got drop\)"
    ):
        build_encoder(assemble({"method": plugin}), plugin.Config(), ToyTokenizer(), 8, "drop")
    assert build_encoder(assemble({"method": plugin}), plugin.Config(), ToyTokenizer(), 8, "auto").encode(
        Document("long")
    )


def test_a_bound_of_patches_is_refused_where_no_images_are_read():
    with pytest.raises(ConfigError, match=r"data\.max_patches: the method, or the model, reads no images"):
        build_encoder(assemble({"method": plugin}), plugin.Config(), ToyTokenizer(), 8, "auto", 64)
