"""The device `hostcard` (tests/fixtures/hostcard), built and made visible to this process and to those that it starts."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "fixtures" / "hostcard"


@pytest.fixture(scope="session")
def hostcard(tmp_path_factory):
    """Folder with the wheel's files (``site``) and the runtime library (``accelerators``)."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler: the runtime of the device hostcard cannot be built")
    from flit_core.wheel import make_wheel_in

    home = tmp_path_factory.mktemp("hostcard")
    wheel = make_wheel_in(SOURCE / "pyproject.toml", home).file
    zipfile.ZipFile(wheel).extractall(home / "site")
    (home / "accelerators").mkdir()
    paddle = next(Path(p) / "paddle" for p in sys.path if (Path(p) / "paddle" / "include").is_dir())
    command = [compiler, "-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-w"]
    command += ["-DPADDLE_WITH_CUSTOM_DEVICE", f"-I{paddle}/include", f"-I{paddle}/include/third_party"]
    command += [
        *map(str, sorted((SOURCE / "runtime").glob("*.cc"))),
        "-o",
        str(home / "accelerators" / "libhostcard.so"),
    ]
    command += [f"-L{paddle}/libs", "-l:libphi_core.so", "-l:libcommon.so", "-lrt", "-pthread"]
    subprocess.run(command, check=True)
    return home


@pytest.fixture
def accelerators(hostcard, monkeypatch):
    """Processes that are started from here find the plugin and the library."""
    monkeypatch.setenv("CUSTOM_DEVICE_ROOT", str(hostcard / "accelerators"))
    monkeypatch.setenv("GLOG_minloglevel", "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(hostcard / "site"), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(str(hostcard / "site"))
    return hostcard
