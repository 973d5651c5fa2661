"""The process that renders templates of others: it answers one request after the other within hard limits.

It holds nothing of ours: neither settings nor paddle, no files but its socket. Time is limited per request, first by a
signal that Python handles (the line is known then), then by the kernel; memory is limited for the whole process. Requests
are ``marshal`` data from the process that started it; answers are a letter and text, because nobody trusts this process.
"""

from __future__ import annotations

import json
import marshal
import resource
import signal
from collections import OrderedDict
from importlib import import_module
from math import ceil
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from erniecore_text.rendering import LIMIT, RESOURCES, RenderFault, Rendering, line_of

#: processor time of a request, and memory of the process in bytes
SECONDS, MEMORY = 3.0, 1 << 30
#: beyond ``SECONDS``, for operations that no signal interrupts
_GRACE = 1
#: templates that are kept
_KEPT = 32
#: first letters of answers
TEXT, FAULT, UNKNOWN, OPENED = b"T", b"F", b"U", b"O"


class _OutOfTime(BaseException):
    """A request took too long; no ``except Exception`` of jinja2 catches it."""


def serve(descriptor: int, seconds: float, memory: int) -> None:
    """Answer requests until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's signals come to the parent, which still needs answers
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, _out_of_time)
    _warm_up()
    for limit, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 3),
    ):
        hard = resource.getrlimit(limit)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (most, most))
    connection = Connection(descriptor)
    known: OrderedDict[int, Rendering] = OrderedDict()
    while True:
        try:
            request = connection.recv_bytes()
        except (EOFError, OSError):
            return
        connection.send_bytes(_answer(known, request, seconds))


def _warm_up() -> None:
    """Import what is imported on first use: no file can be opened afterwards."""
    import_module("jinja2.debug")
    import_module("unicodedata")
    Rendering("{{ '\\u00e9\\n' }}{{ 'x' | tojson }}", "x", {}).text([], None, {}).encode("utf-8", "surrogatepass")


def _out_of_time(number: int, frame: Any) -> NoReturn:
    raise _OutOfTime


def _answer(known: OrderedDict[int, Rendering], request: bytes, seconds: float) -> bytes:
    """What a request yields, within its time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = ceil(used.ru_utime + used.ru_stime + seconds + _GRACE)
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
    try:
        try:
            signal.setitimer(signal.ITIMER_PROF, seconds)
            return _work(known, request)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except RenderFault as fault:
        return _fault(fault)
    except _OutOfTime as error:
        line = line_of(error.__traceback__)
        return _fault(RenderFault(RESOURCES, line, f"it takes more than {seconds:g} s of processor time"))
    except MemoryError as error:
        line = line_of(error.__traceback__)
        return _fault(RenderFault(RESOURCES, line, "it needs too much memory"))
    except Exception as error:  # what no template may do: the other end reports it
        return _fault(RenderFault(LIMIT, line_of(error.__traceback__), f"{type(error).__name__}: {error}"))


def _work(known: OrderedDict[int, Rendering], request: bytes) -> bytes:
    what, key, *rest = marshal.loads(request)
    if what == "open":
        rendering = known[key] = Rendering(*rest)
        if len(known) > _KEPT:
            known.popitem(last=False)
        return OPENED + (b"1" if rendering.verbatim else b"0")
    if key not in known:
        return UNKNOWN
    known.move_to_end(key)
    return TEXT + known[key].text(*rest).encode("utf-8", "surrogatepass")


def _fault(fault: RenderFault) -> bytes:
    return FAULT + json.dumps([fault.kind, fault.line, fault.found]).encode()
