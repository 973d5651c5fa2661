"""The end of a process whose mapped file is gone: named where it was watched, as before where it was not. Real SIGBUS."""

import signal
import subprocess
import sys

import pytest

CODE = """
import ctypes, mmap, os, sys, threading
import numpy as np
from erniecore_system import mapped

class Gone(Exception):
    exit_code = 5

def open_mapped(name, pages=10):
    with open(name, "wb") as file:
        file.write(b"1" * pages * mmap.PAGESIZE)
    with open(name, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

def watched(name):
    memory = open_mapped(name)
    values = np.frombuffer(memory, np.uint8)
    mapped.watch(memory, values.ctypes.data, lambda offset, size: Gone(f"byte {offset // mmap.PAGESIZE} pages, {size} bytes"))
    return values

kind, values = sys.argv[1], watched("one")
os.truncate("one", 3 * mmap.PAGESIZE + 5)
if kind == "numpy":
    values.sum()
elif kind == "thread without the lock":  # as the worker threads of kernels: memchr, called by ctypes, holds no lock
    libc = ctypes.CDLL(None)
    libc.memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    thread = threading.Thread(target=libc.memchr, args=(values.ctypes.data, 2, len(values)))
    thread.start()
    while thread.is_alive():
        pass
elif kind == "a handler that came later":
    import faulthandler
    faulthandler.enable()
    mapped.arm()
    values.sum()
elif kind == "a mapping at the place of a closed one":
    place = values.ctypes.data
    memory = values.base.obj if isinstance(values.base, memoryview) else values.base
    del values
    memory.close()
    mapped.check()  # what is closed is nobody's concern, also while somebody holds the object
    values = watched("three")
    assert values.ctypes.data == place
    os.truncate("three", 3 * mmap.PAGESIZE + 5)
    values.sum()
elif kind == "a file that nobody watches":
    other = np.frombuffer(open_mapped("two"), np.uint8)
    os.truncate("two", 0)
    other.sum()
elif kind == "unmapped":
    del values
    assert not mapped._watched
    os._exit(5)
elif kind == "within a page":
    os.truncate("one", 10 * mmap.PAGESIZE)
    mapped.check()
    os.truncate("one", 10 * mmap.PAGESIZE - 1)
    try:
        mapped.check()
    except Gone as error:
        sys.exit(5 if "byte 9 pages" in str(error) else 1)
"""


@pytest.mark.parametrize(
    "kind",
    [
        "numpy",
        "thread without the lock",
        "a handler that came later",
        "a mapping at the place of a closed one",
        "unmapped",
        "within a page",
    ],
)
def test_a_file_that_is_truncated_while_it_is_mapped(tmp_path, kind):
    done = subprocess.run([sys.executable, "-c", CODE, kind], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 5, done.stderr
    if kind in ("unmapped", "within a page"):
        assert not done.stderr
    else:
        import mmap

        assert done.stderr == f"byte 4 pages, {3 * mmap.PAGESIZE + 5} bytes\n"


def test_faults_of_others_are_theirs(tmp_path):
    kind = "a file that nobody watches"
    done = subprocess.run([sys.executable, "-c", CODE, kind], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == -signal.SIGBUS
    assert not done.stderr
