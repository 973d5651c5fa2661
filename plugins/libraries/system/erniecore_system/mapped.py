"""Files that are mapped into memory, and the end of a process that touches what is gone of one (Linux). Standard library only.

A file that somebody truncates while it is mapped gives SIGBUS where its missing pages are touched, and zeros behind its end
on the last page. No check before the access helps: the file may be cut between the two. So SIGBUS has a handler, which
looks up the mapping by the address, tells what is wrong with the file, and ends the process with the error's exit code.
The fault comes from the instruction that reads the page, in numpy, Paddle or a kernel, never from within the interpreter
or an allocator; so Python may run there, as in a callback. A thread that does not hold the interpreter's lock waits for it.
Faults at other addresses go to the handler of before. For cuts that touch no missing page there is :func:`check`.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

#: told of an error that ends the process
Report = Callable[[Exception], object]
#: offset in a file of a byte that cannot be read, size of the file now -> the error
Wrong = Callable[[int, int], Exception]


@runtime_checkable
class _Coded(Protocol):
    """An error that says with which code a process ends."""

    exit_code: int


@dataclass(frozen=True, slots=True)
class _Watched:
    """One mapping: its place in memory, and where in the file it begins. The file is not kept open by this."""

    begin: int
    size: int
    start: int
    file: weakref.ref[mmap.mmap]
    wrong: Wrong

    def opened(self) -> mmap.mmap | None:
        """The mapping, if it is one still: closed by hand, it is none, and its addresses may be another one's."""
        file = self.file()
        return None if file is None or file.closed else file


_watched: dict[int, _Watched] = {}
_handler: Any = None


def _say(error: Exception) -> None:
    sys.stderr.write(f"{error}\n")


_report: Report = _say


def end(error: Exception) -> None:
    """Report ``error`` and end this process with its ``exit_code``, whatever its threads do."""
    try:
        with suppress(Exception):
            _report(error)
            sys.stderr.flush()
    finally:
        os._exit(error.exit_code if isinstance(error, _Coded) else 1)


_end: Report = end


@contextmanager
def reported_by(report: Report) -> Iterator[None]:
    """How :func:`end` says an error within the block; by default it is a line on stderr."""
    global _report
    before, _report = _report, report
    try:
        yield
    finally:
        _report = before


@contextmanager
def ended_by(last: Report) -> Iterator[None]:
    """``last`` ends this process within the block if mapped memory is gone; by default :func:`end` does."""
    global _end
    before, _end = _end, last
    try:
        yield
    finally:
        _end = before


def watch(file: mmap.mmap, address: int, wrong: Wrong, start: int = 0) -> None:
    """From now on until ``file`` is unmapped: end this process with an error where its memory is touched and cannot be read.

    Args:
        address: of its first byte. wrong: makes the error; it must not refer to ``file``. start: in the file, of the first byte.
    """
    known = id(file)
    gone = weakref.ref(file, lambda _: _watched.pop(known, None))
    _watched[known] = _Watched(address, len(file), start, gone, wrong)
    arm()


def watch_values(values: Any, wrong: Wrong) -> None:
    """As :func:`watch`, of a ``numpy.memmap``."""
    before = values.offset % mmap.ALLOCATIONGRANULARITY
    watch(values.base, values.ctypes.data - before, wrong, values.offset - before)


def check() -> None:
    """Raise the error of the first mapped file that is shorter than when it was mapped; one ``fstat`` for each."""
    for entry in list(_watched.values()):
        file = entry.opened()
        if file is not None and (size := file.size()) < entry.start + entry.size:
            raise entry.wrong(size, size)


def holds(address: int) -> bool:
    """Whether a file that is watched and mapped still has ``address``."""
    return any(x.begin <= address < x.begin + x.size for x in list(_watched.values()) if x.opened() is not None)


def arm() -> None:
    """Have the handler in place; Paddle installs one of its own where it is imported."""
    global _handler
    if sys.platform == "linux":
        if _handler is None:
            _handler = _Handler()
        _handler.install()


class _Handler:
    """The handler of SIGBUS. ``ctypes`` is imported here: few commands map a file."""

    def __init__(self) -> None:
        import ctypes

        class Action(ctypes.Structure):  # struct sigaction of glibc and musl
            _fields_ = (
                ("handler", ctypes.c_void_p),
                ("mask", ctypes.c_byte * 128),
                ("flags", ctypes.c_int),
                ("restorer", ctypes.c_void_p),
            )

        self._call = ctypes.CDLL(None, use_errno=True).sigaction
        self._byref, self._address_of = ctypes.byref, ctypes.c_void_p.from_address
        self._function = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(self._caught)
        self._before, self._found = Action(), Action()
        self._own = Action(handler=ctypes.cast(self._function, ctypes.c_void_p).value, flags=_SA_SIGINFO)

    def install(self) -> None:
        self._call(signal.SIGBUS, None, self._byref(self._found))
        if self._found.handler != self._own.handler:
            self._call(signal.SIGBUS, self._byref(self._own), self._byref(self._before))

    def _caught(self, number: int, information: int, context: int) -> None:
        try:
            address = self._address_of(information + _SI_ADDR).value or 0
            for entry in list(_watched.values()):
                file = entry.opened() if 0 <= address - entry.begin < entry.size else None
                if file is not None:
                    _end(entry.wrong(entry.start + address - entry.begin, file.size()))
        finally:  # the instruction is tried again, and the handler of before has the fault
            self._call(signal.SIGBUS, self._byref(self._before), None)


#: flag of sigaction; offset of ``si_addr`` in siginfo_t where a pointer has eight bytes
_SA_SIGINFO, _SI_ADDR = 4, 16
