"""Distributions by name: which one brings a plugin that is not installed (``known.toml``), and which provide paddle.

Only used to word errors and reports; nothing is chosen by it.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files

#: Distributions that provide the module ``paddle``, or a device for it.
PADDLE_WHEELS = (
    "paddlepaddle",
    "paddlepaddle-gpu",
    "paddlepaddle-xpu",
    "paddle-custom-npu",
    "paddle-iluvatar-gpu",
    "paddle-metax-gpu",
)


def known() -> dict[tuple[str, str], str]:
    """(kind, name) -> distribution, as ``known.toml`` lists them."""
    from configparser import ConfigParser  # wanted only when something is missing

    # The file uses the part of TOML that is also INI: tomllib exists only from Python 3.11 on.
    parser = ConfigParser(delimiters=("=",), interpolation=None)
    parser.read_string(files("erniecore").joinpath("known.toml").read_text(encoding="utf-8"))
    return {(kind, name.strip('"')): dist.strip('"') for kind in parser.sections() for name, dist in parser.items(kind)}


def home_of(kind: str, name: str) -> str:
    """The distribution that brings plugin ``name``; empty when nobody knows."""
    return known().get((kind, name), "")


def installed(names: tuple[str, ...] = PADDLE_WHEELS) -> dict[str, str]:
    """Name -> version of those distributions of ``names`` that are installed; imports none of them."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
