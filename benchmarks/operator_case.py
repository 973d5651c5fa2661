"""One call of an operator that is measured; see ``operator_cases.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Case(NamedTuple):
    """A call of an operator's function. ``moved``: bytes that it reads and writes at least. ``prepare``: called before each
    measured call, for what works in place."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    moved: float
    flops: float
    prepare: Callable[[], Any] | None = None
