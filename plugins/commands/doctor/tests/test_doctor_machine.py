"""Python, memory and disk as the doctor sees them."""

import pytest
from erniecore_doctor import machine


@pytest.fixture
def machine_of(tmp_path):
    """A system of 16 GiB, half of it available, whose container uses 1 GiB of its limit."""

    def make(limit):
        files = {
            "proc/meminfo": "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n",
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": limit,
            "sys/fs/cgroup/memory.current": f"{1 << 30}\n",
        }
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("version", "level"), [((3, 9, 1), "problem"), ((3, 10, 0), "ok"), ((3, 13, 2), "ok"), ((3, 15, 0), "warning")]
)
def test_python_versions(version, level):
    assert machine.python_finding(version).level == level


@pytest.mark.parametrize(("system", "level"), [("Linux", "ok"), ("Darwin", "warning")])
def test_systems(system, level):
    assert machine.system_finding(system).level == level


def test_more_threads_than_cores_is_a_warning():
    assert machine.processor_finding({"OMP_NUM_THREADS": "4096"}).level == "warning"
    assert machine.processor_finding({"OMP_NUM_THREADS": "1"}).level == "ok"
    assert machine.processor_finding({"OMP_NUM_THREADS": "many"}).level == "warning"


def test_the_limit_of_a_container_is_told(machine_of):
    found = machine.memory_finding(machine_of("4294967296\n"))
    assert found.level == "warning"
    assert found.message == "16.0 GiB, 3.0 GiB available; this container may use 4.0 GiB"


def test_a_container_without_a_limit_is_no_news(machine_of):
    assert machine.memory_finding(machine_of("max\n")).level == "ok"


def test_a_system_that_does_not_say_is_a_warning(tmp_path):
    assert machine.memory_finding(tmp_path).level == "warning"


def test_the_disk_probe_leaves_nothing(tmp_path):
    found = list(machine.disk_findings(tmp_path / "not" / "yet"))
    assert [f.name for f in found] == ["disk", "disk speed"]
    assert list(tmp_path.iterdir()) == []


def test_little_space_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "free_bytes", lambda path: 1 << 30)
    assert next(machine.disk_findings(tmp_path)).level == "warning"


def test_a_full_disk_is_a_problem_and_is_not_written_to(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "free_bytes", lambda path: 1 << 20)
    monkeypatch.setattr(machine, "write_rate", lambda path: pytest.fail("wrote"))
    assert [f.level for f in machine.disk_findings(tmp_path)] == ["warning", "problem"]


def test_a_disk_that_refuses_is_a_problem(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(machine, "write_rate", refuse)
    assert "Permission denied" in list(machine.disk_findings(tmp_path))[-1].message
