"""The bytes of an image: of a file below a root, or of a data URL. Nothing is ever fetched.

A file is opened directory by directory from its root, each without following links, so that no link leads out, also none
that is made while the file is opened.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from collections.abc import Sequence

from erniecore_media.limits import Limits, MediaError

_DATA_URL = re.compile(r"data:(?P<type>[\w.+-]+/[\w.+-]+)?(?:;[\w-]+=[\w.-]+)*;base64,", re.ASCII)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:", re.ASCII)
_SHOWN = 80


def read_bytes(source: str, roots: Sequence[str | os.PathLike[str]], limits: Limits) -> bytes:
    """What ``source`` names.

    Args:
        source: a data URL in base64, a path below the first root, or an absolute path below any of them.
        roots: directories. limits: ``bytes`` counts.

    Raises:
        MediaError: another URL, a path that leaves the roots or passes a link, what is missing or no regular file, and
            more bytes than the limit.
    """
    if source.startswith("data:"):
        return _decoded(source, limits)
    if _SCHEME.match(source):
        fix = "download it, and write its path"
        raise MediaError("URLs are not fetched", found=_short(source), expected="a path or a data URL", fix=fix)
    if not source or "\0" in source:
        raise MediaError("not a path", found=repr(_short(source)), expected="a path or a data URL")
    root, parts = _below(source, [os.path.realpath(root) for root in roots])
    try:
        return _read(_open(root, parts), limits, source)
    except FileNotFoundError as error:
        found = os.path.join(root, *parts)
        fix = "correct the path; relative ones start at the directory of the data file"
        raise MediaError("the file does not exist", found=found, expected="an image file", fix=fix) from error
    except OSError as error:
        # O_NOFOLLOW: ELOOP for a link at the end, ENOTDIR for one in between
        link = any(os.path.islink(os.path.join(root, *parts[: i + 1])) for i in range(len(parts)))
        message = "the path passes a symbolic link" if link else "the file cannot be read"
        fix = "name the file itself" if link else ""
        raise MediaError(message, found=f"{_short(source)} ({error.strerror})", expected="a file", fix=fix) from error


def _decoded(source: str, limits: Limits) -> bytes:
    head = _DATA_URL.match(source[:512])
    if head is None:
        raise MediaError("a data URL that is not in base64", found=_short(source), expected="data:image/png;base64,…")
    if (len(source) - head.end()) // 4 * 3 > limits.bytes:
        raise _too_large(f"{(len(source) - head.end()) // 4 * 3} bytes in a data URL", limits)
    try:
        return base64.b64decode(source[head.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise MediaError(f"the data URL is damaged: {error}", found=_short(source), expected="base64") from error


def _below(source: str, roots: Sequence[str]) -> tuple[str, list[str]]:
    """A root, and the path from there."""
    path = os.path.normpath(os.path.join(roots[0], source))
    for root in roots:
        if path.startswith(root.rstrip(os.sep) + os.sep):
            return root, os.path.relpath(path, root).split(os.sep)
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    if real != path and any(real.startswith(root.rstrip(os.sep) + os.sep) for root in roots):
        return _below(real, roots)  # the root itself was written through a link
    expected, fix = "a path below " + " or ".join(roots), "move the file there, or name its directory as a root"
    raise MediaError("the path is outside of the roots", found=path, expected=expected, fix=fix)


def _open(root: str, parts: Sequence[str]) -> int:
    """A descriptor of the file. Raises ``OSError``, also for links."""
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(part, flags, dir_fd=directory)
            os.close(directory)
            directory = inner
        # a pipe without a writer must not stop the run
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(parts[-1], flags, dir_fd=directory)
    finally:
        os.close(directory)


def _read(descriptor: int, limits: Limits, source: str) -> bytes:
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        os.close(descriptor)
        raise MediaError("not a regular file", found=_short(source), expected="an image file")
    with os.fdopen(descriptor, "rb") as file:
        if facts.st_size > limits.bytes:
            raise _too_large(f"{facts.st_size} bytes", limits)
        data = file.read(limits.bytes + 1)
    if len(data) > limits.bytes:
        raise _too_large(f"more than {limits.bytes} bytes", limits)
    return data


def _too_large(found: str, limits: Limits) -> MediaError:
    return MediaError("the file is too large", found=found, expected=f"at most {limits.bytes} bytes")


def _short(source: str) -> str:
    return source if len(source) <= _SHOWN else source[:_SHOWN] + "…"
