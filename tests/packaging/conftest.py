"""Wheels of the repository and of new plugins, and virtual environments that hold nothing else of ours.

Third-party libraries are borrowed from the interpreter that runs the tests, one link per top-level entry: no network, no
copies, and none of the distributions under test can leak in from there.
"""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECTS = [ROOT, *sorted(p.parent for p in ROOT.glob("plugins/*/*/pyproject.toml"))]


def build(project, out):
    """A wheel of one project, built by its own back end."""
    from flit_core.wheel import make_wheel_in

    return make_wheel_in(project / "pyproject.toml", out).file


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """Distribution name -> wheel, for the core and every plugin of the repository."""
    out = tmp_path_factory.mktemp("wheels")
    built = [Path(build(project, out)) for project in PROJECTS]
    return {path.name.split("-")[0].replace("_", "-"): path for path in built}


@pytest.fixture(scope="session")
def needed():
    """A function (names of distributions of ours) -> these and all of ours that they depend on."""
    projects = [tomllib.loads((project / "pyproject.toml").read_text())["project"] for project in PROJECTS]
    direct = {p["name"]: [Requirement(r).name for r in p["dependencies"]] for p in projects}

    def closure(names):
        found, open_names = set(), list(names)
        while open_names:
            name = open_names.pop()
            if name in direct and name not in found:
                found.add(name)
                open_names += direct[name]
        return found

    return closure


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    """Links to everything that is installed here, but nothing of erniecore."""
    folder = tmp_path_factory.mktemp("libraries")
    for name in ("purelib", "platlib"):
        for entry in Path(sysconfig.get_paths()[name]).iterdir():
            link = folder / entry.name
            if (
                not entry.name.startswith(("erniecore", "ernie_third_party", "__editable__"))
                and entry.suffix != ".pth"
                and not link.exists()
            ):
                link.symlink_to(entry)
    return folder


class Environment:
    """A virtual environment with some wheels."""

    def __init__(self, home, libraries, wheels):
        self.home, self.python = home, home / "bin" / "python"
        venv.create(home, symlinks=True, with_pip=False)
        (site,) = home.glob("lib/python*/site-packages")
        (site / "borrowed.pth").write_text(f"{libraries}\n")
        self.variables = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "ERNIE", "COV_"))}
        self.variables["OMP_NUM_THREADS"] = "1"
        self.install("--no-deps", *wheels)

    def install(self, *words):
        """pip, from another environment and without a network."""
        self._pip("install", "--no-index", *map(str, words))

    def remove(self, *names):
        """Distributions that were installed."""
        self._pip("uninstall", "--yes", *names)

    def _pip(self, *words):
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, *words], check=True)

    def run(self, *words, cwd="/", status=0, stream="stdout"):
        """A program of the environment; its output."""
        command = [str(self.home / "bin" / words[0]), *map(str, words[1:])]
        done = subprocess.run(command, cwd=cwd, env=self.variables, capture_output=True, text=True)
        assert done.returncode == status, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return getattr(done, stream)


@pytest.fixture(scope="session")
def make_environment(tmp_path_factory, libraries):
    """A function (wheels) -> Environment."""

    def make(wheels):
        return Environment(tmp_path_factory.mktemp("environment") / "venv", libraries, list(wheels))

    return make
