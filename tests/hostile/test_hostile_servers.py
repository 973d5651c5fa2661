"""Servers of data files and hubs that send too much, too little, something else or nothing that can be read: an error within
limits of memory and disk, and never a file outside of the cache."""

import json

import pytest
from hostile_files import JSON_TEXTS, WRONG, assert_refused, shown
from hostile_server import HostileServer, as_json, endless, head, whole

from erniecore.errors import Exit

pytestmark = pytest.mark.area("servers of files, hubs")
ROWS = b"".join(b'{"instruction": "q%d", "output": "a"}\n' % i for i in range(200))
ENDED = {0, Exit.USAGE, Exit.DATA, Exit.ENVIRONMENT, Exit.CHECKPOINT}
MEMORY, CPU = 1 << 30, 40  # an endless answer that is kept reaches the first before the second
BIG = 8 << 30
ETAG = 'ETag: "1"'


@pytest.fixture
def clients(imported):
    """Imported once; every attempt is a fork that has them."""
    import fsspec.implementations.http
    import httpx  # noqa: F401
    import huggingface_hub
    import huggingface_hub.file_download

    assert fsspec.implementations.http
    assert huggingface_hub.file_download


@pytest.fixture
def asks(ernie, clients, box):
    """``asks(answer, *words)``: a command whose words have ``URL``, with a server that answers so; how it ended."""

    def scarce():
        """What an endless answer fills is little."""
        from erniecore_hubs import parts
        from erniecore_remote import fetching

        from erniecore.api.installation import free_bytes

        fetching.PAUSE = 0.0
        fetching.RESERVE = parts.RESERVE = free_bytes(box) - (64 << 20)

    def ask(answer, *words):
        server = HostileServer(answer)
        url = f"http://127.0.0.1:{server.port}"
        hosts = {"HF_ENDPOINT": url, "MODELSCOPE_ENDPOINT": url}
        try:
            return ernie(*(word.replace("URL", url) for word in words), environ=hosts, before=scarce, port=server.port,
                         memory=MEMORY, cpu=CPU)  # fmt: skip
        finally:
            server.close()

    return ask


def ranged(body, request, size=None):
    """What a good server sends of a file."""
    if request.end < 0:
        return whole(body, ETAG, "Accept-Ranges: bytes")
    part = body[request.start : request.end + 1]
    about = f"Content-Range: bytes {request.start}-{request.start + len(part) - 1}/{size or len(body)}"
    return whole(part, ETAG, about, status="206 Partial Content")


def head_of(request, size):
    return [head("200 OK", ETAG, "Accept-Ranges: bytes", f"Content-Length: {size}")] if request.verb == "HEAD" else None


def range_of_gigabytes(request):
    lines = (f"Content-Range: bytes {request.start}-{request.end}/{len(ROWS)}", f"Content-Length: {BIG}", ETAG)
    return head_of(request, len(ROWS)) or (head("206 Partial Content", *lines), *endless())


def chunks_without_an_end(request):
    chunk = b"%x\r\n" % (1 << 20) + bytes(1 << 20) + b"\r\n"
    return (head("200 OK", "Transfer-Encoding: chunked", ETAG), *(() if request.verb == "HEAD" else endless(chunk)))


def packed(request):
    import gzip

    bomb = gzip.compress(gzip.compress(bytes(1 << 28), 9), 9)
    return whole(bomb, "Content-Encoding: gzip", ETAG)


FILES = {
    "a range of gigabytes": range_of_gigabytes,
    "chunks without an end": chunks_without_an_end,
    "a body without an end": lambda request: (head("200 OK", ETAG), *endless()),
    "an enormous size": lambda request: head_of(request, BIG << 20) or ranged(ROWS, request, BIG << 20),
    "a size that is no number": lambda request: [head("200 OK", ETAG, "Content-Length: many") + ROWS],
    "a negative size": lambda request: [head("200 OK", ETAG, "Content-Length: -5") + ROWS],
    "a smaller size": lambda request: head_of(request, 100) or ranged(ROWS, request, 100),
    "a larger size": lambda request: head_of(request, 2 * len(ROWS)) or ranged(ROWS, request, 2 * len(ROWS)),
    "another range": lambda request: head_of(request, len(ROWS))
    or whole(ROWS, ETAG, f"Content-Range: bytes 5-{len(ROWS) + 4}/{len(ROWS)}", status="206 Partial Content"),
    "a range that is none": lambda request: head_of(request, len(ROWS))
    or whole(ROWS, ETAG, "Content-Range: bytes a-b/c", status="206 Partial Content"),
    "nothing in a range": lambda request: head_of(request, len(ROWS))
    or whole(b"", ETAG, f"Content-Range: bytes 0-0/{len(ROWS)}", status="206 Partial Content"),
    "no head": lambda request: [],
    "no HTTP": lambda request: [b"\x00\xff" * 5000],
    "a head without an end": lambda request: endless(b"X: " + b"y" * 1000 + b"\r\n"),
    "a line without an end": lambda request: endless(b"z" * (1 << 16)),
    "colors in the version": lambda request: whole(ROWS, "ETag: \x1b[31mred\x9b", "Accept-Ranges: none"),
    "a version of a mebibyte": lambda request: whole(ROWS, 'ETag: "' + "x" * (1 << 20) + '"'),
    "a version of each moment": lambda request: whole(ROWS, f'ETag: "{__import__("time").time_ns()}"'),
    "a packed answer of gigabytes": packed,
    "redirects in a circle": lambda request: whole(b"", f"Location: {request.path}", status="302 Found"),
    "a redirect to a file": lambda request: whole(b"", "Location: file:///etc/passwd", status="302 Found"),
    "a redirect to colors": lambda request: whole(b"", "Location: \x1b[31m//", status="302 Found"),
    "all statuses of errors": lambda request: whole(b"\x1b[31m", status="599 \x1b[31mno"),
    "a status that is none": lambda request: [b"HTTP/1.1 abc def\r\n\r\n"],
    "gigabytes of an error": lambda request: (head("500 Error", ETAG), *endless()),
    "an authentication": lambda request: whole(b"", "WWW-Authenticate: Basic", status="401 Unauthorized"),
    "half of it": lambda request: [next(iter(ranged(ROWS, request)))[:-50]],
    "what is no row": lambda request: ranged(bytes(range(256)) * 40, request),
}  # fmt: skip


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv", "rows.parquet", "rows.jsonl.gz"])
@pytest.mark.parametrize("server", FILES)
def test_a_server_of_files(asks, server, name):
    assert_refused(asks(FILES[server], "data", "check", f"URL/{name}"), ENDED)


@pytest.mark.parametrize("name", ["%2e%2e", "%00", "a%0ab.jsonl", "%1b%5b31m.jsonl", "..%2f..%2fx.jsonl", "x" * 5000 + ".jsonl",
                                  "a.jsonl?b=%1b[31m", ".jsonl", "~.jsonl", "-.jsonl", "a%5cb.jsonl"],
                         ids=lambda name: name[:20])  # fmt: skip
def test_a_name_of_a_file(asks, name):
    assert_refused(asks(lambda request: ranged(ROWS, request), "data", "check", f"URL/{name}"), ENDED)


COMMIT = "1" * 40
CONFIG = b'{"model_type": "ernie4_5"}'


def hugging_face(info=None, content=None, files=("config.json", "model.safetensors")):
    """A hub that answers ``info`` of the repository, or the right thing, and ``content`` for a file."""
    found = {"id": "a/b", "sha": COMMIT, "siblings": [{"rfilename": name, "size": len(CONFIG)} for name in files]}

    def answer(request):
        if request.path.startswith("/api/"):
            return as_json(found if info is None else info)
        if content is not None:
            return content(request)
        return whole(CONFIG, f"X-Repo-Commit: {COMMIT}", 'ETag: "1"')

    return answer


def entry(**changes):
    return {
        "Path": "config.json",
        "Type": "blob",
        "Size": len(CONFIG),
        "Revision": COMMIT,
        "CommittedDate": 1,
        **changes,
    }


def modelscope(data=None, content=None, body=None):
    """The same of ModelScope's interface."""

    def answer(request):
        if "/repo/" in request.path:
            return as_json({"Code": 200, "Data": data or {"Files": [entry(), entry(Path="model.safetensors")]}}) \
                if body is None else as_json(body)  # fmt: skip
        return content(request) if content is not None else whole(CONFIG)

    return answer


HUBS = {"hf": (hugging_face, ["hf:a/b"]), "ms": (modelscope, ["ms:a/b"])}
CONTENTS = [name for name in FILES if "status" not in name]


@pytest.mark.parametrize("what", CONTENTS)
@pytest.mark.parametrize("hub", HUBS)
def test_what_a_hub_sends_as_a_file(asks, hub, what):
    make, words = HUBS[hub]
    assert_refused(asks(make(content=FILES[what]), "model", "pull", *words), ENDED)


@pytest.mark.parametrize("text", JSON_TEXTS)
@pytest.mark.parametrize("words", [["model", "pull"], ["data", "check"]], ids=" ".join)
@pytest.mark.parametrize("hub", HUBS)
def test_what_a_hub_says(asks, hub, words, text):
    make = hugging_face if hub == "hf" else modelscope
    answer = make(**{"info" if hub == "hf" else "body": JSON_TEXTS[text]})
    assert_refused(asks(answer, *words, f"{hub}:a/b"), ENDED)


@pytest.mark.parametrize("value", WRONG, ids=shown)
@pytest.mark.parametrize("key", ["id", "sha", "siblings"])
def test_what_the_hugging_face_hub_says_of_a_repository(asks, key, value):
    info = {"id": "a/b", "sha": COMMIT, "siblings": [{"rfilename": "config.json", "size": 1}], key: value}
    assert_refused(asks(hugging_face(info), "model", "pull", "hf:a/b"), ENDED - {0} if key == "sha" else ENDED)


NAMES = ["../x.jsonl", "/etc/x.jsonl", "a/../../x.jsonl", "a\\b.jsonl", "\x1b[31m.jsonl", "", ".", "a/.", "a//b.jsonl", "a/",
         "x" * 5000 + ".jsonl", "\0.jsonl", ".parts/rows.jsonl", "\ud800.jsonl", 5, None, ["a"], {}, "a\nb.jsonl",
         "\u202e.jsonl"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=lambda name: json.dumps(name)[:20])
@pytest.mark.parametrize("words", [["model", "pull"], ["data", "check"]], ids=" ".join)
@pytest.mark.parametrize("hub", HUBS)
def test_a_hub_names_files(asks, box, hub, words, name):
    files = ["config.json", "model.safetensors", "rows.jsonl", name]
    if hub == "hf":
        answer = hugging_face(files=files)
    else:
        answer = modelscope({"Files": [entry(Path=file) for file in files]})
    assert_refused(asks(answer, *words, f"{hub}:a/b"), ENDED)
    assert not [
        path for path in box.rglob("*") if path.is_file() and ".cache" not in str(path) and "erniecore" not in str(path)
    ]


@pytest.mark.parametrize(
    "commit", ["../../../../../outside", "/tmp/x", "1" * 39, "\x1b[31m", "", "..", "1" * 40 + "/.."]
)
@pytest.mark.parametrize("hub", HUBS)
def test_a_commit_that_is_none(asks, hub, commit):
    info = {"id": "a/b", "sha": commit, "siblings": [{"rfilename": "model.safetensors", "size": len(CONFIG)}]}
    answer = hugging_face(info) if hub == "hf" else modelscope({"Files": [entry(Revision=commit)]})
    assert_refused(asks(answer, "model", "pull", f"{hub}:a/b"), {Exit.ENVIRONMENT}, "cannot be reached")


@pytest.mark.parametrize("value", WRONG, ids=shown)
@pytest.mark.parametrize("key", ["Path", "Size", "Revision", "CommittedDate", "Sha256", "Type"])
def test_what_modelscope_says_of_a_file(asks, key, value):
    answer = modelscope({"Files": [entry(**{key: value}), entry(Path="model.safetensors")]})
    assert_refused(asks(answer, "model", "pull", "ms:a/b"), ENDED)


def test_a_list_of_files_without_an_end(asks):
    page = {"Files": [entry(Path=f"{n}.jsonl") for n in range(100)]}
    assert_refused(asks(modelscope(page), "data", "check", "ms:a/b"), {Exit.ENVIRONMENT}, "no end")


def test_an_answer_of_gigabytes(asks):
    start = head("200 OK", "Content-Type: application/json") + b'{"Data": ['
    assert_refused(asks(lambda request: (start, *endless(b'"a",' * 65536)), "model", "pull", "ms:a/b"),
                   {Exit.ENVIRONMENT}, "more than")  # fmt: skip
