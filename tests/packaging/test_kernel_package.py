"""The kernels' own distribution: it installs with a compiler and without one, and erniecore says which it was."""

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAYS = "from erniecore import kernels; c = kernels.choose('cpu', {}); print(kernels.described(c), c.warnings)"

pytestmark = [pytest.mark.slow, pytest.mark.install]


@pytest.fixture(scope="session")
def wheel_with(tmp_path_factory):
    """A function (compiler) -> wheel built with ``CXX=compiler``, from sources alone."""

    def build(compiler):
        folder = tmp_path_factory.mktemp("kernels")
        left_out = shutil.ignore_patterns("*.so", "build", "*.egg-info", "__pycache__")
        shutil.copytree(ROOT / "third_party_kernels", folder / "source", ignore=left_out)
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-index",
        ]
        command = [*pip, "--no-build-isolation", "-w", str(folder), str(folder / "source")]
        subprocess.run(command, check=True, env={**os.environ, "CXX": compiler}, capture_output=True)
        (wheel,) = folder.glob("*.whl")
        return wheel

    return build


@pytest.fixture(scope="session")
def core(wheels, needed):
    """The wheels of the core and of the libraries that it depends on."""
    return [wheels[name] for name in sorted(needed(["erniecore"]))]


def libraries_in(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return sorted(Path(name).name for name in archive.namelist() if name.endswith(".so"))


def test_without_a_compiler_it_installs_and_the_reference_runs(wheel_with, core, make_environment):
    wheel = wheel_with("/bin/false")
    assert libraries_in(wheel) == []
    out = make_environment([*core, wheel]).run("python", "-c", SAYS)
    assert out.startswith("reference (all)")
    assert "no C++ compiler" in out


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no compiler")
def test_with_a_compiler_the_kernels_run(wheel_with, core, make_environment):
    wheel = wheel_with("c++")
    every = ["kernels_avx2.so", "kernels_avx512.so", "kernels_plain.so"]
    assert libraries_in(wheel) == (every if platform.machine() in ("x86_64", "AMD64") else ["kernels_plain.so"])
    assert wheel.name.startswith("ernie_third_party_kernels-0.1.0-py3-none-linux")
    environment = make_environment([*core, wheel])
    assert environment.run("python", "-c", SAYS) == "native (all) ()\n"
    code = "from ernie_third_party_kernels import library; print(library.load().rotate.__name__)"
    assert environment.run("python", "-c", code) == "rotate\n"


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no compiler")
def test_an_editable_package_is_compiled_again_only_when_its_sources_changed(tmp_path):
    """Other processes may use the libraries: installing once more must not pull them away."""
    shutil.copytree(
        ROOT / "third_party_kernels", tmp_path / "source", ignore=shutil.ignore_patterns("build", "*.egg-info")
    )
    package, log = tmp_path / "source" / "ernie_third_party_kernels", tmp_path / "compiler.log"
    (tmp_path / "c++").write_text(f'#!/bin/sh\necho "$@" >> {log}\nexit 1\n')
    (tmp_path / "c++").chmod(0o755)

    def libraries():
        return {library.name: library.stat().st_ino for library in package.glob("*.so")}

    def install():
        command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
        environment = {**os.environ, "CXX": str(tmp_path / "c++")}
        subprocess.run(command, cwd=package.parent, check=True, env=environment, capture_output=True)

    for library in package.glob("*.so"):
        library.touch()
    before = libraries()
    assert before
    install()
    assert libraries() == before
    assert not log.exists()
    with (package / "common.h").open("a") as header:
        header.write("// changed\n")
    install()
    assert len(log.read_text().splitlines()) == len(before)


def test_not_installed_is_the_reference_and_says_what_to_install(core, make_environment):
    out = make_environment(core).run("python", "-c", SAYS)
    assert out.startswith("reference (all) ('no kernels for cpu are installed; the reference operators run")
    assert "install --find-links " in out
    assert out.rstrip().endswith("ernie-third-party-kernels',)")
