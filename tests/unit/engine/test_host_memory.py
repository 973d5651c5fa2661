"""Giving freed memory back, seen from outside: a process that keeps it, and then does not."""

import platform
import subprocess
import sys

import pytest

_CODE = """
import re
from erniecore_system.memory import keep_freed_memory, release_freed

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


_LARGE = """
from erniecore_system.memory import keep_freed_memory, return_blocks

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024

assert not return_blocks(64 << 20)  # where nothing is kept, the thresholds stay
assert keep_freed_memory()
assert return_blocks(64 << 20)
large, small = bytearray(160 << 20), bytearray(48 << 20)
full = resident()
del large
without = resident()
del small
print(full - without, without - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_large_blocks_go_back_by_themselves_and_small_ones_are_kept():
    done = subprocess.run([sys.executable, "-c", f"import re{_LARGE}"], capture_output=True, text=True, check=True)
    large, small = done.stdout.split()
    assert int(large) > 150
    assert int(small) < 16
