"""Parts of files, and never more of them than was asked for: clients of fsspec read a whole response into memory, whatever its
length, so responses of web servers and of S3 are read here as they arrive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import closing
from importlib import import_module
from typing import Any

#: the first byte that a response has
_START = re.compile(r"bytes (\d+)-")


def read_part(files: Any, path: str, start: int, end: int) -> bytes:
    """Some bytes of a file of a file system of fsspec; fewer where the file ends.

    Raises:
        OSError: the connection is at fault, or the server sends more or other bytes. ValueError: it gives whole files alone.
    """
    return _PARTS.get(files.protocol[0] if isinstance(files.protocol, tuple) else files.protocol, _of_others)(
        files, path, start, end
    )


def _of_others(files: Any, path: str, start: int, end: int) -> bytes:
    data: bytes = files.cat_file(path, start=start, end=end)
    return data


def _of_web(files: Any, path: str, start: int, end: int) -> bytes:
    wanted = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
    headers = {**files.kwargs.get("headers", {}), **wanted}
    # a size, so that none is asked for; blocks of no bytes are a stream
    with closing(files.open(path, "rb", block_size=0, size=end, headers=headers)) as stream:
        found = _START.match(stream.r.headers.get("Content-Range", ""))
        if stream.r.status != 206 or found is None or int(found[1]) != start:
            raise ValueError("no ranges")
        return _bounded(stream.read, end - start)


def _of_s3(files: Any, path: str, start: int, end: int) -> bytes:
    bucket, key, version = files.split_path(path)
    more = {"VersionId": version} if version else {}
    errors = import_module("botocore.exceptions")
    try:
        body = files.call_s3("get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{end - 1}", **more)["Body"]
        sync = import_module("fsspec.asyn").sync
        try:
            return _bounded(lambda most: sync(files.loop, body.read, most), end - start)
        finally:
            body.close()
    except (errors.BotoCoreError, errors.HTTPClientError) as error:
        raise OSError(" ".join(str(error).split())) from error


_PARTS: Mapping[str, Callable[[Any, str, int, int], bytes]] = {
    "http": _of_web,
    "https": _of_web,
    "s3": _of_s3,
    "s3a": _of_s3,
}


def _bounded(read: Callable[[int], bytes], size: int) -> bytes:
    """All that ``read`` gives. Raises ``OSError`` for more than ``size`` bytes, of which one is read at most."""
    parts, here = [], 0
    while data := read(size + 1 - here):
        parts.append(data)
        here += len(data)
        if here > size:
            raise OSError(f"the server sends more than the {size} bytes that were asked for")
    return b"".join(parts)
