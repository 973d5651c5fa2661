"""Compiles the kernels, one library per instruction set, when a C++ compiler is there. A package without libraries is
installed all the same: erniecore then runs its own operators and says so. Everything else is in pyproject.toml.
"""

from __future__ import annotations

import os
import platform
import runpy
import shlex
import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

PACKAGE = "ernie_third_party_kernels"
SOURCES = runpy.run_path(str(Path(PACKAGE, "sources.py")))
MARKED = f'-DERNIE_SOURCES="{SOURCES["mark"](Path(PACKAGE))}"'
COMMON = [
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fopenmp",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wno-psabi",
]
#: library -> what the compiler may assume about the processor; the best one is chosen at run time
FLAGS = {
    "avx512": [
        "-mavx512f",
        "-mavx512dq",
        "-mavx512cd",
        "-mavx512bw",
        "-mavx512vl",
        "-mfma",
        "-mprefer-vector-width=512",
    ],
    "avx2": ["-mavx2", "-mfma"],
    "plain": [],
}


def compiler() -> list[str]:
    """``$CXX`` if it is set, else the first C++ compiler on the path; empty if there is none."""
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    return next(([name] for name in ("c++", "g++", "clang++") if shutil.which(name)), [])


def run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def is_current(library: Path) -> bool:
    """Whether an earlier installation left what would be compiled now: from these sources, with the flags of this file."""
    return (
        library.is_file()
        and library.stat().st_mtime >= Path(__file__).stat().st_mtime
        and SOURCES["is_current"](library, Path(PACKAGE))
    )


class Build(build_ext):
    """Runs the compiler as it is: these are plain libraries, not modules of Python. One that an editable installation has
    put beside its sources stays as long as it is current, whichever interpreter asks: processes that run may use it.
    """

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so"

    def build_extension(self, ext: Extension) -> None:
        target, beside = Path(self.get_ext_fullpath(ext.name)), Path(self.get_ext_filename(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        if is_current(beside):
            if beside.resolve() != target.resolve():
                shutil.copy2(beside, target)
            return
        objects = [str(Path(self.build_temp, ext.name, source).with_suffix(".o")) for source in ext.sources]
        try:
            for source, made in zip(ext.sources, objects, strict=True):
                Path(made).parent.mkdir(parents=True, exist_ok=True)
                run([*compiler(), *COMMON, MARKED, *ext.extra_compile_args, "-c", source, "-o", made])
            # without -fopenmp: the runtime is the one that the process has, see library.py
            run([*compiler(), "-shared", *objects, "-o", str(target)])
        except (OSError, subprocess.CalledProcessError) as error:
            target.unlink(missing_ok=True)
            self.warn(f"{target.name} was not built: {getattr(error, 'stderr', '') or error}")

    def copy_extensions_to_source(self) -> None:
        """The new ones; copying a file over itself would pull it away from under its users."""
        self.extensions = [e for e in self.extensions if not is_current(Path(self.get_ext_filename(e.name)))]
        super().copy_extensions_to_source()


class Wheel(bdist_wheel):
    """Any Python, this platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


sources = sorted(str(p) for p in Path(PACKAGE).glob("*/kernel.cpp"))
names = FLAGS if platform.machine() in ("x86_64", "AMD64") else ["plain"]
extensions = [
    Extension(f"{PACKAGE}.kernels_{name}", sources, extra_compile_args=FLAGS[name], optional=True) for name in names
]
setup(ext_modules=extensions, cmdclass={"build_ext": Build, "bdist_wheel": Wheel})
