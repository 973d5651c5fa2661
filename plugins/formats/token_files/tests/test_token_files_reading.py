"""Indexed token files: the bytes of the layout, what can be read back, and every way in which a pair can be wrong."""

import itertools
import os
import struct

import numpy as np
import pytest
from erniecore_token_files.names import prefix_of
from erniecore_token_files.reading import DTYPES, open_token_file
from erniecore_token_files.writing import TokenFileWriter, smallest_dtype
from guarded import guarded
from hypothesis import given, settings
from hypothesis import strategies as st

from erniecore import codes
from erniecore.data.reader import split_rows
from erniecore.errors import DataError, UsageError


def write(prefix, documents, dtype=DTYPES[8]):
    with TokenFileWriter(prefix, dtype) as writer:
        for document in documents:
            writer.add(np.asarray(document, np.int64), np.asarray([len(document)]))
    return prefix


def foreign(prefix, sequences, documents, *, code=4, version=1, magic=b"MMIDIDX\x00\x00"):
    """As other tools write it: documents may consist of several sequences."""
    dtype = DTYPES.get(code, np.dtype("<f4"))
    sizes = np.asarray([len(s) for s in sequences], "<i4")
    pointers = (np.cumsum(sizes, dtype="<i8") - sizes) * dtype.itemsize
    header = magic + struct.pack("<QBQQ", version, code, len(sequences), len(documents))
    index = header + sizes.tobytes() + pointers.astype("<i8").tobytes() + np.asarray(documents, "<i8").tobytes()
    prefix.with_name(prefix.name + ".idx").write_bytes(index)
    prefix.with_name(prefix.name + ".bin").write_bytes(b"".join(np.asarray(s, dtype).tobytes() for s in sequences))
    return prefix


def documents_of(file):
    edges = [file.start(i) for i in range(file.num_documents + 1)]
    return [file.tokens[a:b].tolist() for a, b in itertools.pairwise(edges)]


def test_the_bytes_are_those_of_the_published_layout(tmp_path):
    write(tmp_path / "c", [[1, 2, 3], [4]])
    index = (tmp_path / "c.idx").read_bytes()
    expected = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, 2, 3)
    expected += struct.pack("<2i", 3, 1) + struct.pack("<2q", 0, 6) + struct.pack("<3q", 0, 1, 2)
    assert index == expected
    assert (tmp_path / "c.bin").read_bytes() == struct.pack("<4H", 1, 2, 3, 4)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.integers(0, 60000), max_size=7), min_size=1, max_size=9), st.sampled_from([4, 5, 8]))
def test_documents_come_back(tmp_path_factory, documents, code):
    if not any(documents):
        documents = [*documents, [1]]
    file = open_token_file(write(tmp_path_factory.mktemp("t") / "c", documents, DTYPES[code]))
    assert documents_of(file) == documents
    flat = [(i, token) for i, d in enumerate(documents) for token in d]
    assert [file.document(p) for p in range(file.num_tokens)] == [i for i, _ in flat]
    begins = sorted({file.start(i) for i in range(file.num_documents)})
    for start, stop in ((0, file.num_tokens), (1, file.num_tokens), (0, 3), (2, 5)):
        assert file.starts_within(start, stop).tolist() == [b for b in begins if start < b < stop]


def test_documents_of_several_sequences(tmp_path):
    file = open_token_file(foreign(tmp_path / "c", [[1, 2], [3], [4, 5, 6]], [0, 2, 3]))
    assert documents_of(file) == [[1, 2, 3], [4, 5, 6]]
    assert file.starts_within(0, 6).tolist() == [3]


def test_a_pair_is_named_by_its_prefix_or_either_file(tmp_path):
    write(tmp_path / "a.b", [[1, 2]])
    for name in ("a.b", "a.b.bin", "a.b.idx"):
        assert prefix_of(tmp_path / name) == tmp_path / "a.b"
        assert open_token_file(tmp_path / name).num_tokens == 2
    assert prefix_of(tmp_path / "rows.jsonl") is None


def spoil(path, change):
    path.write_bytes(change(path.read_bytes()))


WRONG = [
    ("idx", lambda b: b"XX" + b[2:], codes.NO_TOKEN_FILE, "index of a token file"),
    ("idx", lambda b: b[:20], codes.TOKEN_FILE_DAMAGED, "header"),
    ("idx", lambda b: b[:9] + b"\x02" + b[10:], codes.NO_TOKEN_FILE, "version"),
    ("idx", lambda b: b[:17] + b"\x07" + b[18:], codes.TOKEN_DTYPE, "dtype code 7"),
    ("idx", lambda b: b[:-3], codes.TOKEN_FILE_DAMAGED, "ends early"),
    ("idx", lambda b: b + b"\0", codes.TOKEN_FILE_DAMAGED, "longer"),
    ("idx", lambda b: b[:34] + struct.pack("<i", -3) + b[38:], codes.TOKEN_FILE_DAMAGED, "negative"),
    ("idx", lambda b: b[:50] + struct.pack("<q", 4) + b[58:], codes.TOKEN_FILE_DAMAGED, "one behind the other"),
    ("idx", lambda b: b[:-8] + struct.pack("<q", 1), codes.TOKEN_FILE_DAMAGED, "cover"),
    ("idx", lambda b: b[:-16] + struct.pack("<2q", 3, 2), codes.TOKEN_FILE_DAMAGED, "goes back"),
    ("bin", lambda b: b[:-1], codes.TOKEN_FILE_DAMAGED, "ends early"),
    ("bin", lambda b: b + b"\0\0", codes.TOKEN_FILE_DAMAGED, "longer"),
]


@pytest.mark.parametrize(("ending", "change", "code", "words"), WRONG, ids=[w[3] + "-" + w[0] for w in WRONG])
def test_a_damaged_pair_is_refused_with_its_name(tmp_path, ending, change, code, words):
    write(tmp_path / "c", [[1, 2, 3], [4]])
    spoil(tmp_path / f"c.{ending}", change)
    with pytest.raises(DataError) as caught:
        open_token_file(tmp_path / "c")
    assert caught.value.code == code
    assert words in str(caught.value)
    assert f"c.{ending}" in caught.value.where


@pytest.mark.parametrize("ending", ["bin", "idx"])
def test_half_a_pair_is_refused(tmp_path, ending):
    write(tmp_path / "c", [[1, 2]])
    (tmp_path / f"c.{ending}").unlink()
    with pytest.raises(DataError, match="missing") as caught:
        open_token_file(tmp_path / f"c.{'idx' if ending == 'bin' else 'bin'}")
    assert caught.value.where.endswith(f"c.{ending}")


def test_commands_that_read_rows_say_who_reads_token_files(tmp_path):
    write(tmp_path / "c", [[1, 2]])
    with pytest.raises(DataError, match="--method pt"):
        list(split_rows(tmp_path / "c.bin"))


def test_foreign_ids_are_named_with_document_and_place(tmp_path):
    file = open_token_file(write(tmp_path / "c", [[1, 2], [3, 99]]))
    file.check_ids(100)
    with pytest.raises(DataError) as caught:
        file.check_ids(99)
    assert caught.value.code == codes.ID_OUT_OF_RANGE
    assert "document 2, token 3" in caught.value.where
    negative = open_token_file(foreign(tmp_path / "n", [[1, -5]], [0, 1]))
    with pytest.raises(DataError, match="-5"):
        negative.check_ids(99)


def test_nothing_is_left_of_a_failed_build(tmp_path):
    def build():
        with TokenFileWriter(tmp_path / "c", DTYPES[8]) as writer:
            writer.add(np.arange(3), np.asarray([3]))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        build()
    assert list(tmp_path.iterdir()) == []


def test_an_id_beyond_the_dtype_is_refused(tmp_path):
    with pytest.raises(DataError, match="65536"), TokenFileWriter(tmp_path / "c", DTYPES[8]) as writer:
        writer.add(np.asarray([65536]), np.asarray([1]))
    assert list(tmp_path.iterdir()) == []


def test_existing_files_are_never_replaced(tmp_path):
    write(tmp_path / "c", [[1, 2]])
    before = (tmp_path / "c.bin").read_bytes()
    with pytest.raises(UsageError, match="exists"):
        write(tmp_path / "c", [[3, 4]])
    assert (tmp_path / "c.bin").read_bytes() == before


def test_no_tokens_are_no_file(tmp_path):
    with pytest.raises(DataError):
        write(tmp_path / "c", [[], []])
    assert list(tmp_path.iterdir()) == []


def test_small_vocabularies_take_two_bytes():
    assert smallest_dtype(65499).itemsize == 2
    assert smallest_dtype(65500).itemsize == 4


@pytest.mark.parametrize("ending", [".bin", ".idx"])
def test_a_file_that_is_truncated_while_it_is_used_ends_the_process_with_its_name(tmp_path, ending):
    """Touching what is gone is SIGBUS, no exception."""
    write(tmp_path / "t", [[1] * 3000] * 3000)

    def use():
        file = open_token_file(tmp_path / "t")
        os.truncate(tmp_path / f"t{ending}", 5000)
        return int(file.tokens.sum()) + file.document(file.num_tokens - 1)

    done = guarded(use)
    assert done.code == 4, done
    assert f"t{ending}: the file was truncated while it was in use (got 5000 bytes)" in done.err
