"""Giving freed memory back, seen from outside: a process that keeps it, and then does not."""

import platform
import subprocess
import sys

import pytest

_CODE = """
import re
from erniecore.builtin.cpu import keep_freed_memory
from erniecore_system.memory import release_freed

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024

assert keep_freed_memory()
blocks = [bytearray(8 << 20) for _ in range(20)]
full = resident()
del blocks
kept = resident()
print(full - kept, release_freed(), kept - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_blocks_are_returned_once_asked():
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, check=True)
    lost, released, returned = done.stdout.split()
    assert int(lost) < 16
    assert released == "True"
    assert int(returned) > 120
