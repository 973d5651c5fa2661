"""What is left of the host's memory, by the machine and by the control groups of a container."""

import pytest
from erniecore_system.memory import host_memory

GIB = 1 << 30
MEMINFO = "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\n"


def system(root, files):
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(str(text))
    return root


def group(directory, most, used, cache=0):
    return {
        f"{directory}/memory.max": most,
        f"{directory}/memory.current": used,
        f"{directory}/memory.stat": f"anon 5\ninactive_file {cache}\n",
    }


@pytest.mark.parametrize(
    ("files", "available", "limit"),
    [
        pytest.param({}, 8 * GIB, None, id="no groups"),
        pytest.param({"proc/self/cgroup": "0::/", **group("sys/fs/cgroup", "max", GIB)}, 8 * GIB, None, id="no limit"),
        pytest.param(
            {"proc/self/cgroup": "0::/", **group("sys/fs/cgroup", 4 * GIB, 3 * GIB)}, GIB, 4 * GIB, id="limit"
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/", **group("sys/fs/cgroup", 4 * GIB, 3 * GIB, GIB)}, 2 * GIB, 4 * GIB, id="cache"
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/pod/job",
                **group("sys/fs/cgroup/pod/job", "max", GIB),
                **group("sys/fs/cgroup/pod", 6 * GIB, 6 * GIB + 1),
            },
            0,
            6 * GIB,
            id="limit of a group above, used up",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:cpu:/x\n3:memory:/job",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": 4 * GIB,
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes": GIB,
            },
            3 * GIB,
            4 * GIB,
            id="version 1",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/", **group("sys/fs/cgroup", 64 * GIB, GIB)},
            8 * GIB,
            None,
            id="more than there is",
        ),
    ],
)
def test_the_lowest_limit_counts(tmp_path, files, available, limit):
    assert host_memory(system(tmp_path, files)) == (16 * GIB, available, limit)


def test_a_system_without_meminfo_says_nothing(tmp_path):
    assert host_memory(tmp_path) is None


def test_this_machine_says_it():
    found = host_memory()
    assert 0 < found.available <= found.total
