"""Which distribution brings a plugin that is not installed (``known.toml``); only used to word errors."""

from __future__ import annotations

from configparser import ConfigParser
from importlib.resources import files


def known() -> dict[tuple[str, str], str]:
    """(kind, name) -> distribution, as ``known.toml`` lists them."""
    # The file uses the part of TOML that is also INI: tomllib exists only from Python 3.11 on.
    parser = ConfigParser(delimiters=("=",), interpolation=None)
    parser.read_string(files("erniecore").joinpath("known.toml").read_text(encoding="utf-8"))
    return {(kind, name): dist.strip('"') for kind in parser.sections() for name, dist in parser.items(kind)}


def home_of(kind: str, name: str) -> str:
    """The distribution that brings plugin ``name``; empty when nobody knows."""
    return known().get((kind, name), "")
