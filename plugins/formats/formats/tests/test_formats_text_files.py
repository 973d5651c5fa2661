"""Text files cut into documents: nothing lost, long ones skipped, lines right."""

import io
import json

import pytest
from erniecore_formats import text_files
from erniecore_formats.text_files import split_text
from hypothesis import given
from hypothesis import strategies as st

from erniecore import codes
from erniecore.data.opening import ReadLimits
from erniecore.data.reader import read_rows
from erniecore.errors import DataError, RowError


def cut(data, document, limit=1 << 20):
    rows = split_text(io.BytesIO(data), limit, document)
    return [(n, r if isinstance(r, RowError) else json.loads(r)["text"]) for n, r in rows]


LINES = st.sampled_from(["a", " b c", "", " ", "\t", "é\u2028x", "\x85"])


@given(st.lists(LINES, max_size=9), st.sampled_from(["\n", "\r\n"]))
def test_documents_together_hold_every_line_that_is_not_blank(lines, end):
    data = "".join(line + end for line in lines).encode()
    kept = [(n, line) for n, line in enumerate(lines, 1) if line.encode().strip()]
    assert cut(data, "line") == kept
    paragraphs = cut(data, "paragraph")
    assert [line for _, text in paragraphs for line in text.split(end)] == [line for _, line in kept]
    assert {n for n, _ in paragraphs} <= {n for n, _ in kept}
    assert len(cut(data, "file")) == bool(kept)


@pytest.mark.parametrize(("document", "lines"), [("line", [1, 2, 4]), ("paragraph", [1, 4]), ("file", [1])])
def test_documents_beyond_the_limit_are_skipped(monkeypatch, document, lines):
    monkeypatch.setattr(text_files, "_CHUNK", 7)
    found = cut(b"short\n" + b"x" * 100 + b"\n\nshort\n", document, limit=60)
    assert [n for n, _ in found] == lines
    codes_found = [getattr(r, "code", r) for _, r in found]
    assert (
        codes_found
        == {
            "line": ["short", codes.TOO_LONG_ROW, "short"],
            "paragraph": [codes.TOO_LONG_ROW, "short"],
            "file": [codes.TOO_LONG_ROW],
        }[document]
    )


def test_unknown_kind_of_document():
    with pytest.raises(DataError, match="line or paragraph or file"):
        cut(b"a\n", "page")


def test_text_file_without_text_is_empty(tmp_path):
    (tmp_path / "a.txt").write_bytes(b" \n\n")
    with pytest.raises(DataError) as e:
        list(read_rows(tmp_path / "a.txt", ReadLimits()))
    assert e.value.code == codes.EMPTY_FILE
