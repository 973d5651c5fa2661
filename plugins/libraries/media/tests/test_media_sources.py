"""Which files and URLs images are read from."""

import base64
import os
import socket

import pytest
from erniecore_media import Limits, MediaError, read_bytes

LIMITS = Limits(bytes=100)


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "rows"
    (root / "img").mkdir(parents=True)
    (root / "img" / "a.png").write_bytes(b"a")
    (tmp_path / "secret").write_bytes(b"s")
    return root


def test_paths_below_the_root(root, tmp_path):
    assert read_bytes("img/a.png", [root], LIMITS) == b"a"
    assert read_bytes("img/../img/./a.png", [root], LIMITS) == b"a"
    assert read_bytes(str(root / "img" / "a.png"), [root], LIMITS) == b"a"
    (tmp_path / "more").mkdir()
    assert read_bytes(str(root / "img" / "a.png"), [tmp_path / "more", root], LIMITS) == b"a"
    (tmp_path / "link").symlink_to(root)
    assert read_bytes(str(tmp_path / "link" / "img" / "a.png"), [tmp_path / "link"], LIMITS) == b"a"


def test_a_data_url():
    text = base64.b64encode(b"a" * 90).decode()
    assert read_bytes(f"data:image/png;base64,{text}", ["."], LIMITS) == b"a" * 90


REFUSED = {
    "../secret": "outside of the roots",
    "/etc/passwd": "outside of the roots",
    "img/../../secret": "outside of the roots",
    "img": "not a regular file",
    "img/none.png": "does not exist",
    "img/a.png/x": "cannot be read",
    "img/link.png": "symbolic link",
    "linked/secret": "symbolic link",
    "pipe": "not a regular file",
    "socket": "cannot be read",
    "large": "too large",
    "": "not a path",
    "a\0b": "not a path",
    "https://example.org/a.png": "URLs are not fetched",
    "file:///etc/passwd": "URLs are not fetched",
    "data:image/png,abc": "not in base64",
    "data:image/png;base64,???": "damaged",
    "data:image/png;base64," + "A" * 200: "too large",
}


@pytest.mark.parametrize("source", REFUSED)
def test_what_is_refused(source, root, tmp_path, monkeypatch):
    (root / "img" / "link.png").symlink_to(root / "img" / "a.png")
    (root / "linked").symlink_to(tmp_path)
    os.mkfifo(root / "pipe")
    monkeypatch.chdir(root)  # paths of sockets are short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    (root / "large").write_bytes(b"a" * 101)
    with pytest.raises(MediaError, match=REFUSED[source]) as error:
        read_bytes(source, [root], LIMITS)
    assert len(error.value.found) < 200 + len(str(root))
