"""How a check says no: plain functions that raise, with values in the message. Not a test framework.

``assert`` is left to tests: checks also run under ``python -O`` and from the command line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from erniecore.api import shorten

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class CheckFailed(AssertionError):
    """The subject breaks the rule of a check."""


class NotApplicable(Exception):
    """The rule says nothing about this subject; the message is the reason."""


def ensure(condition: bool, message: str) -> None:
    """Raise :class:`CheckFailed` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise CheckFailed(message)


def ensure_equal(found: object, expected: object, what: str) -> None:
    """Raise :class:`CheckFailed` unless ``found == expected``."""
    ensure(found == expected, f"{what}: {shorten(found)}, expected {shorten(expected)}")


def ensure_close(found: ArrayLike, expected: ArrayLike, tolerance: float, what: str) -> None:
    """Raise :class:`CheckFailed` unless shapes agree and every element is within ``tolerance`` (absolute).

    Nothing that is not finite is close to anything.
    """
    import numpy as np

    a, b = np.asarray(found, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    ensure(a.shape == b.shape, f"{what}: shape {a.shape}, expected {b.shape}")
    ensure(bool(np.isfinite(a).all() and np.isfinite(b).all()), f"{what}: holds values that are not finite")
    worst = float(np.abs(a - b).max()) if a.size else 0.0
    ensure(worst <= tolerance, f"{what}: differs by {worst:.3g}, allowed {tolerance:.3g}")


def ensure_bits(found: ArrayLike, expected: ArrayLike, what: str) -> None:
    """Raise :class:`CheckFailed` unless shapes, dtypes and every bit agree."""
    import numpy as np

    a, b = np.asarray(found), np.asarray(expected)
    ensure(a.shape == b.shape, f"{what}: shape {a.shape}, expected {b.shape}")
    ensure(a.dtype == b.dtype, f"{what}: dtype {a.dtype}, expected {b.dtype}")
    ensure(a.tobytes() == b.tobytes(), f"{what}: values differ")


def ensure_raises(kind: type[BaseException], call: Callable[[], Any], what: str) -> BaseException:
    """Raise :class:`CheckFailed` unless ``call()`` raises ``kind``; returns what was raised."""
    try:
        found = call()
    except kind as error:
        return error
    except Exception as error:
        raise CheckFailed(f"{what}: raised {type(error).__name__}: {error}; expected {kind.__name__}") from error
    raise CheckFailed(f"{what}: returned {shorten(found)}; expected {kind.__name__}")
