"""Data files of servers on localhost, fetched with the real clients."""

import sys
from pathlib import Path

import pytest
from erniecore_remote import fetching
from file_server import FileServer

from erniecore import codes
from erniecore.config.core import Source
from erniecore.data.file_types import located
from erniecore.data.reader import read_rows
from erniecore.data.sources import resolve
from erniecore.errors import DataError, EnvironmentFault

ROWS = b"".join(b'{"instruction": "q%d", "output": "a"}\n' % i for i in range(2000))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(fetching, "BLOCK", 30_000)
    monkeypatch.setattr(fetching, "PAUSE", 0)


@pytest.fixture
def server(own_cache):
    served = FileServer()
    yield served
    served.close()


def unfinished(tmp_path):
    return [p for p in (tmp_path / "cache").rglob("*") if p.is_file() and ".part" in str(p)]


def test_a_file_is_fetched_once_per_version(server, tmp_path):
    server.files["data/rows.jsonl"] = ROWS
    url = f"{server.url}/data/rows.jsonl?signature=a%2Fb"
    (source,) = resolve([Source(path=url)], "auto")
    assert (source.file, source.parser.name, source.path.name) == (url, "alpaca", "rows.jsonl")
    assert source.path.read_bytes() == ROWS
    assert server.contents() == ["bytes=0-29999", "bytes=30000-59999", f"bytes=60000-{len(ROWS) - 1}"]
    assert (located(url), len(server.contents())) == (source.path, 3)
    server.files["data/rows.jsonl"] = ROWS[:-40]
    newer = located(url)
    assert (newer != source.path, newer.read_bytes(), unfinished(tmp_path)) == (True, ROWS[:-40], [])


def test_a_cut_connection_goes_on_where_it_stopped(server, tmp_path):
    server.files["rows.jsonl"] = ROWS
    server.cuts["rows.jsonl"] = [30_000, 10, 10]
    assert located(f"{server.url}/rows.jsonl").read_bytes() == ROWS
    second = "bytes=30000-59999"
    assert server.contents() == ["bytes=0-29999", second, second, second, f"bytes=60000-{len(ROWS) - 1}"]


def test_a_command_that_gave_up_is_continued(server, tmp_path):
    server.files["rows.jsonl"] = ROWS
    server.cuts["rows.jsonl"] = [30_000, 1, 1, 1, 1]
    with pytest.raises(EnvironmentFault, match="after 30000 of") as e:
        located(f"{server.url}/rows.jsonl")
    assert "what is here is kept" in str(e.value)
    assert [p.stat().st_size for p in unfinished(tmp_path)] == [30_000]
    server.requests.clear()
    assert located(f"{server.url}/rows.jsonl").read_bytes() == ROWS
    assert server.contents()[0] == "bytes=30000-59999"


@pytest.mark.parametrize("name", ["", "..", "%2e%2e", "a/%2e%2e", "a%00b.jsonl"])
def test_a_name_that_no_file_can_have_is_refused(server, name):
    with pytest.raises(DataError, match="names no file"):
        located(f"{server.url}/{name}")


@pytest.mark.parametrize("ranges", [True, False])
def test_a_file_never_fills_the_disk(server, tmp_path, monkeypatch, ranges):
    server.files["rows.jsonl"], server.ranges = ROWS, ranges
    monkeypatch.setattr(fetching, "RESERVE", 10_000)
    monkeypatch.setattr(
        fetching, "free_bytes", lambda path: 75_000 - sum(p.stat().st_size for p in unfinished(tmp_path))
    )
    with pytest.raises(EnvironmentFault, match="no room for the file") as caught:
        located(f"{server.url}/rows.jsonl")
    assert "stay free" in caught.value.expected
    assert sum(p.stat().st_size for p in unfinished(tmp_path)) <= 60_000


def test_a_server_without_ranges_gives_the_whole_file(server):
    server.files["rows.jsonl"], server.ranges = ROWS, False
    assert located(f"{server.url}/rows.jsonl").read_bytes() == ROWS
    server.files["rows.jsonl"] = ROWS * 2
    server.cuts["rows.jsonl"] = [70_000] * 3
    with pytest.raises(EnvironmentFault, match="cannot be fetched"):
        located(f"{server.url}/rows.jsonl")


@pytest.mark.parametrize(
    ("path", "prepare", "error", "said"),
    [
        ("none.jsonl", {}, DataError, "there is no such file"),
        ("rows.jsonl", {"wants": "Basic x"}, DataError, "the server refuses the file"),
        ("rows.jsonl", {"versions": False}, DataError, "curl -LO"),
        ("", {}, DataError, "the URL names no file"),
    ],
)
def test_what_cannot_be_had(server, path, prepare, error, said):
    server.files["rows.jsonl"] = ROWS
    for name, value in prepare.items():
        setattr(server, name, value)
    with pytest.raises(error) as e:
        located(f"{server.url}/{path}")
    assert said in str(e.value)


def test_a_server_that_is_not_there(server):
    server.close()
    with pytest.raises(EnvironmentFault, match="cannot be fetched"):
        located(f"{server.url}/rows.jsonl")


def test_an_s3_that_is_not_there(server, monkeypatch, request):
    s3fs = pytest.importorskip("s3fs")
    s3fs.S3FileSystem.clear_instance_cache()  # which knows the server of another test
    request.addfinalizer(s3fs.S3FileSystem.clear_instance_cache)
    server.close()
    for name, value in (("ENDPOINT_URL", server.url), ("ACCESS_KEY_ID", "x"), ("SECRET_ACCESS_KEY", "x")):
        monkeypatch.setenv(f"AWS_{name}", value)
    with pytest.raises(EnvironmentFault, match="cannot be fetched"):
        located("s3://box/rows.jsonl")


def test_a_password_is_not_taken_and_not_repeated(server):
    with pytest.raises(DataError, match="netrc") as e:
        located("https://me:secret@example.org/rows.jsonl")
    assert "secret" not in str(e.value)


def test_a_file_that_changes_is_not_mixed_of_two_versions(server, tmp_path, monkeypatch):
    server.files["rows.jsonl"] = ROWS
    copy = fetching.copy

    def changing(*args):
        copy(*args)
        server.files["rows.jsonl"] = ROWS.replace(b"q1", b"Q1")

    monkeypatch.setattr(fetching, "copy", changing)
    with pytest.raises(DataError, match="changed while it was fetched") as e:
        located(f"{server.url}/rows.jsonl")
    assert e.value.code == codes.CHANGED_WHILE_READ
    assert unfinished(tmp_path) == []


def listed(located_):
    return [row["instruction"] for _, row in read_rows(located_)]


def check_folders(url, write):
    """The same for every scheme that can list files."""
    row = b'{"instruction": "%s", "output": "a"}\n'
    for name in ("b/train-2.jsonl", "a/train-1.jsonl", "a/test.jsonl", ".hidden.jsonl", "README.md"):
        write(name, row % name.encode())
    assert listed(located(f"{url}:train")) == ["a/train-1.jsonl", "b/train-2.jsonl"]
    assert listed(located(f"{url}/*/t*.jsonl")) == ["a/test.jsonl", "a/train-1.jsonl", "b/train-2.jsonl"]
    assert listed(located(f"{url}/a/test.jsonl")) == ["a/test.jsonl"]
    with pytest.raises(DataError, match="several splits"):
        listed(located(url))
    with pytest.raises(DataError, match="no data file"):
        located(f"{url}/*.parquet")
    with pytest.raises(DataError, match="no such file"):
        located(f"{url}/none.jsonl")


def test_folders_and_patterns_in_the_memory_of_the_process():
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("memory")
    check_folders("memory://box/rows", lambda name, data: files.pipe_file(f"/box/rows/{name}", data))


def test_folders_and_patterns_of_s3(server, monkeypatch):
    pytest.importorskip("s3fs")
    for name, value in {"ENDPOINT_URL_S3": server.url, "ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    check_folders("s3://box/rows", lambda name, data: server.files.__setitem__(f"box/rows/{name}", data))


@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_without_its_packages_the_error_says_what_to_install(server, monkeypatch, scheme):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(EnvironmentFault, match="URLs of this scheme need") as e:
        located(f"{scheme}://127.0.0.1/rows.jsonl")
    assert "pip install" in e.value.next


def test_nothing_is_asked_for_that_no_source_names(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    server.files["rows.jsonl"] = ROWS
    Path("rows.jsonl").write_bytes(ROWS[:100].rpartition(b"\n")[0] + b"\n")
    resolve([Source(path="rows.jsonl")], "auto")
    assert server.requests == []
