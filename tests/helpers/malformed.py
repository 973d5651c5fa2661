"""Requests that are wrong in every way that a test of the server could think of, with the statuses that are right."""

import json

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
GOOD = {CHAT: {"messages": [{"role": "user", "content": "a"}]}, TEXT: {"prompt": "a"}, "/tokenize": {"prompt": "a"},
        "/detokenize": {"tokens": [5]}, "/v1/abort": {"abort_all": True}}  # fmt: skip
#: values of a type that no field but free text has
WRONG = [[], {}, "x", [[]], [{}], -1, 1.5, True, "\x00", 10**30, [None], {"": None}]
FIELDS = ("temperature", "top_p", "n", "max_tokens", "stop", "seed", "logit_bias", "stream", "stream_options", "messages",
          "tools", "logprobs", "min_tokens")  # fmt: skip
#: what some field takes after all
RIGHT = {
    ("stop", "x"), ("stop", "\x00"), ("temperature", "1.5"), ("logit_bias", "{}"), ("stream", "True"), ("tools", "[]"),
    ("logprobs", "True"), ("stop", "[]"),
}  # fmt: skip


#: statuses for a body that is wrong
REFUSED = (400, 413)


def deep(depth):
    return "[" * depth + "]" * depth


def bodies():
    """(path, content, headers); the status of each is one of ``REFUSED``."""
    for path in GOOD:
        raw = [
            b"", b"{", b"null", b"[]", b'"x"', b"1", b"{} {}", b"\xff\xfe\x00", b"\x80abc", '{"prompt": "é"}'.encode("latin-1"),
            json.dumps(GOOD[path]).encode("utf-16"), b"{'prompt': 1}", b'{"a": NaN}', b'{"n": 1e999}', b'{"a": -Infinity}',
            deep(5000).encode(), f'{{"messages": {deep(3000)}}}'.encode(), b'{"prompt": "\\ud800"}',
            b'{"n": ' + b"9" * 5000 + b"}",
            b'{"' + b"k" * 9000 + b'": 1}', b'{"prompt": "' + b"x" * 70_000 + b'"}', b'{"messages": 3, "prompt": 3}',
            b"--x\r\ncontent-disposition: form-data\r\n\r\n", b'{"unknown": 1}',
        ]  # fmt: skip
        for content in raw:
            yield path, content, {}
        for kind in ("text/plain", "application/x-www-form-urlencoded", "", "application/jsonx", "\x01"):
            yield path, json.dumps(GOOD[path]).encode(), {"content-type": kind}
    for field in FIELDS:
        for value in WRONG:
            if (field, str(value)) not in RIGHT:
                yield CHAT, json.dumps({**GOOD[CHAT], field: value}).encode(), {}


def raw_requests(authorization):
    """(bytes, statuses); 0: the connection is closed without an answer."""
    head = f"host: x\r\n{authorization}content-type: application/json\r\n"
    good = json.dumps(GOOD[TEXT])
    sized = f"{head}content-length: {len(good)}\r\n"
    flood = "".join(f"x-{n}: {n}\r\n" for n in range(20_000))
    wide = f"x-wide: {'w' * 100_000}\r\n"
    lines = [
        (f"POST {TEXT} HTTP/1.1\r\n{flood}\r\n", (400, 0)),
        (f"POST {TEXT} HTTP/1.1\r\n{head}{wide}\r\n", (400, 0)),
        (f"POST {TEXT}?{'q' * 100_000} HTTP/1.1\r\n{head}\r\n", (400, 0)),
        (f"POST {TEXT} HTTP/1.1\r\n{head}content-length: -1\r\n\r\n", (400,)),
        (f"POST {TEXT} HTTP/1.1\r\n{head}content-length: 1e3\r\n\r\n", (400,)),
        (f"POST {TEXT} HTTP/1.1\r\n{sized}content-length: 3\r\n\r\n{good}", (400,)),
        (f"POST {TEXT} HTTP/1.1\r\n{head}content-length: {1 << 40}\r\n\r\n", (413,)),
        (f"POST {TEXT} HTTP/1.1\r\n{head}transfer-encoding: chunked\r\n\r\nzz\r\n", (400, 0)),
        (f"POST {TEXT} HTTP/1.1\r\n{head}transfer-encoding: chunked\r\n\r\n{'f' * 40}\r\n", (400, 0)),
        (f"POST {TEXT} HTTP/1.1\r\n{head}transfer-encoding: gzip\r\n\r\n{good}", (400, 501)),
        (f"POST {TEXT} HTTP/1.1\r\n{sized}content-encoding: gzip\r\n\r\n{' ' * len(good)}", (400,)),
        (f"POST {TEXT} HTTP/one\r\n{sized}\r\n{good}", (400,)),
        (f"POST {TEXT}\r\n\r\n", (400,)),
        (f"POST /v1/{'../' * 200}completions HTTP/1.1\r\n{sized}\r\n{good}", (404,)),
        (f"POST /v1/%00completions HTTP/1.1\r\n{sized}\r\n{good}", (404,)),
        (f"GET {TEXT} HTTP/1.1\r\n{head}\r\n", (405,)),
        (f"BREW {TEXT} HTTP/1.1\r\n{head}\r\n", (405,)),
        (f"POST {TEXT} HTTP/1.1\r\n{head}x y: 1\r\n\r\n", (400,)),
        (f"POST {TEXT} HTTP/1.1\r\n{head}x: \x00\r\n\r\n", (400,)),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", (400,)),
    ]  # fmt: skip
    return [(text.encode("latin-1"), statuses) for text, statuses in lines]
