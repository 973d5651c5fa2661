"""Regular expressions from settings and files, which somebody else wrote: matched within a limit of time.

A pattern such as ``(a+)+`` takes twice as long for each further character, and Python's ``re`` cannot be interrupted.
"""

from __future__ import annotations

import re
import time
from functools import lru_cache
from typing import Any


class PatternTimeout(Exception):
    """Matching took too long; the text of the error has the pattern and the length of the text."""


class PatternMatcher:
    """Matches within one budget of time.

    Args:
        seconds: processor time of this process that all calls together may use, about.
    """

    def __init__(self, seconds: float = 2.0) -> None:
        self.seconds = self._left = seconds

    def matches(self, pattern: str, text: str, *, whole: bool = True, dotall: bool = False) -> bool:
        """Whether the pattern matches the whole text, or a part of it.

        Raises ``ValueError`` for what is no pattern, ``PatternTimeout`` when the time is used up."""
        compiled = compile_pattern(pattern, dotall)
        started = time.process_time()
        try:
            run = compiled.fullmatch if whole else compiled.search
            return run(text, timeout=max(self._left, 1e-3)) is not None
        except TimeoutError:
            raise PatternTimeout(
                f"{pattern[:80]!r} was not through with a text of {len(text)} characters after {self.seconds:g} s"
            ) from None
        finally:
            self._left -= time.process_time() - started


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str, dotall: bool = False) -> Any:
    """A pattern of Python's ``re``, for the package ``regex``, which knows a limit of time. Raises ``ValueError``."""
    import regex

    try:
        re.compile(pattern)
        return regex.compile(pattern, regex.DOTALL if dotall else 0)
    except (re.error, regex.error, OverflowError, RecursionError) as error:
        raise ValueError(f"is no regular expression: {error}") from error
