"""Errors that users see: a code, a place, what was found and expected, and what to do next.

Every error that is the user's to fix is an :class:`ErnieError`; anything else that reaches the top is a
bug (exit 1). The command line renders them (``cli/render.py``); Python callers catch the classes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

__all__ = [
    "CODES",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DeviceUnavailable",
    "EnvironmentFault",
    "ErnieError",
    "Exit",
    "MemoryFault",
    "NumericsError",
    "PluginBroken",
    "PluginConflict",
    "PluginError",
    "PluginIncompatible",
    "PluginNotFound",
    "Preempted",
    "Problem",
    "RowError",
    "UsageError",
    "article",
    "did_you_mean",
    "first_line",
    "nearest",
    "says_out_of_memory",
    "shorten",
]


class Exit(IntEnum):
    """Exit codes of ``ernie``. 75 means: preempted, the same command resumes."""

    OK = 0
    BUG = 1
    USAGE = 2
    ENVIRONMENT = 3
    DATA = 4
    CHECKPOINT = 5
    MEMORY = 6
    NUMERICS = 7
    PLUGIN = 9
    PREEMPTED = 75
    INTERRUPTED = 130


class ErnieError(Exception):
    """Base of all errors with a remedy.

    Args:
        message: what is wrong, one line, without a full stop.
        where: ``file:line``, a settings key, a tensor name or a path.
        found: the offending value, cut short by :func:`shorten`.
        expected: what would have been accepted.
        fix: one thing to do; ``next`` is one command to run.
    """

    code = "ERN-B000"
    exit_code: Exit = Exit.BUG

    def __init__(
        self,
        message: str,
        *,
        where: str = "",
        found: str = "",
        expected: str = "",
        fix: str = "",
        next: str = "",
        code: str = "",
    ) -> None:
        super().__init__(message)
        self.message, self.where, self.found = message, where, found
        self.expected, self.fix, self.next = expected, fix, next
        self.code = code or type(self).code

    def __str__(self) -> str:
        parts = [f"{self.where}: " if self.where else "", self.message]
        if self.found:
            parts.append(f" (got {self.found})")
        if self.expected:
            parts.append(f"; expected {self.expected}")
        if self.fix:
            parts.append(f"; {self.fix}")
        return "".join(parts)

    def fields(self) -> dict[str, str]:
        """The non-empty parts, in the order in which they are printed (also the JSON form)."""
        names = ("code", "message", "where", "found", "expected", "fix", "next")
        return {n: getattr(self, n) for n in names if getattr(self, n)}


class UsageError(ErnieError, ValueError):
    """Wrong command line or call."""

    code, exit_code = "ERN-C001", Exit.USAGE


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with the settings; ``source`` and ``line`` sort the report."""

    source: str
    line: int
    key: str
    message: str

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}" if self.line else self.source
        return f"{place}: {self.key}: {self.message}" if self.key else f"{place}: {self.message}"


class ConfigError(ErnieError, ValueError):
    """Wrong settings; carries every problem found, not only the first.

    A plugin raises ``ConfigError.at(key, message)`` from ``ernie_check_settings``; the host collects them
    and adds the source of the key.
    """

    code, exit_code = "ERN-C010", Exit.USAGE

    def __init__(self, problems: Iterable[Problem], **kwargs: str) -> None:
        self.problems = sorted(problems, key=lambda p: (p.source, p.line, p.key))
        super().__init__("\n".join(str(p) for p in self.problems), **kwargs)

    @classmethod
    def at(cls, key: str, message: str, **parts: str) -> ConfigError:
        """A single problem at a settings key whose source the caller does not know."""
        return cls([Problem(source="settings", line=0, key=key, message=message)], **parts)


class EnvironmentFault(ErnieError):
    """Something outside the settings is missing: a wheel, a device, a permission, a port."""

    code, exit_code = "ERN-E001", Exit.ENVIRONMENT


class DeviceUnavailable(EnvironmentFault):
    """The chosen device cannot be opened; the remedy is the vendor's install line. Never a fallback."""

    code = "ERN-H001"


class DataError(ErnieError, ValueError):
    """A data file or row cannot be used."""

    code, exit_code = "ERN-D001", Exit.DATA


class RowError(DataError):
    """One row of a data file cannot be used; ``where`` is a JSON path such as ``$.messages[2].role``.

    Formats and encoders raise it; the reader adds ``file:line`` and counts the row as dropped.
    """

    code = "ERN-D010"


class CheckpointError(ErnieError):
    """A checkpoint or weight file is missing, damaged or does not fit."""

    code, exit_code = "ERN-K001", Exit.CHECKPOINT


class MemoryFault(ErnieError):
    """Out of memory, on the host or a device."""

    code, exit_code = "ERN-M001", Exit.MEMORY


class NumericsError(ErnieError):
    """A loss or gradient that is not finite; weights were not updated with it."""

    code, exit_code = "ERN-N001", Exit.NUMERICS


class PluginError(ErnieError):
    """Base of what can be wrong with a plugin."""

    code, exit_code = "ERN-P001", Exit.PLUGIN


class PluginNotFound(PluginError, LookupError):
    """No installed plugin of that kind has that name."""

    code, exit_code = "ERN-P002", Exit.USAGE

    def __init__(self, message: str, *, kind: str = "", **parts: str) -> None:
        super().__init__(message, **parts)
        self.kind = kind


class PluginConflict(PluginError):
    """Two distributions offer the same name; choose with ``dist:name``."""

    code = "ERN-P003"


class PluginIncompatible(PluginError):
    """The plugin's ``Requires-Dist: erniecore`` excludes the installed core."""

    code = "ERN-P004"


class PluginBroken(PluginError):
    """The plugin is installed but cannot be imported or breaks the contract; the cause is chained."""

    code = "ERN-P005"


class Preempted(ErnieError):
    """The run was asked to stop and saved its state; the same command resumes."""

    code, exit_code = "ERN-R075", Exit.PREEMPTED


#: code -> meaning, of codes that are narrower than their class; those of data are in ``codes.py``
CODES: dict[str, str] = {
    "ERN-C011": "a settings file of another toolkit where only our own format is accepted, such as in `extends`",
    "ERN-C012": "a regular expression in the settings takes too long",
    "ERN-C020": "the run directory already holds a run, and `run.resume=never` asks for a new one",
    "ERN-C030": "a value in an imported file is invalid in its own toolkit as well, or depends on something that only that "
    "toolkit knows",
    "ERN-C031": "an imported file has keys that its toolkit does not know",
    "ERN-C032": "an imported file is for a command other than training",
    "ERN-C021": "the run directory or the checkpoint belongs to another run, to other settings, or to other files (base, "
    "tokenizer, template, adapter, teacher, reward model, plugin versions), or an adapter belongs to another base",
    "ERN-E010": "the run directory cannot be written",
    "ERN-E011": "another process uses the run directory",
    "ERN-E020": "a process of the run was killed, or ended without giving a reason",
    "ERN-E021": "a process of the run lost contact with the others, or waited too long for them",
    "ERN-E022": "the processes of the run could not connect to each other at the start",
    "ERN-E023": "the device loses values that are written into views of a tensor",
    "ERN-E024": "a process of the run made no progress for longer than `run.hang_timeout`",
    "ERN-E030": "a chat template takes too long, or too much memory",
    "ERN-E025": "a machine of the run, or the network connection to it, was lost",
    "ERN-K002": "a checkpoint or weight file is damaged, or was changed after it was written",
    "ERN-K003": "the disk is full, failing or not writable",
    "ERN-K004": "the weights, config.json or the tokenizer do not fit each other or the run",
    "ERN-K010": "the weights are a pickle, which could run code; only safetensors are read",
    "ERN-K020": "there is no model directory, or it has no config.json",
    "ERN-K021": "config.json, or a JSON file next to it, is not valid",
    "ERN-K022": "a file of a model directory or an adapter is a link to a place outside of the directory",
    "ERN-K030": "the exported model differs from its source",
    "ERN-K031": "a prompt has different tokens in serving than in training",
}


def shorten(value: object, limit: int = 80) -> str:
    """``repr`` of ``value`` cut to ``limit`` characters, for ``found=``."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name most similar to ``name``, or ``None`` when nothing is similar enough."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return matches[0] if matches else None


def article(name: str) -> str:
    """``an adapter``, ``an ERNIEKit``, ``a model``."""
    return f"{'an' if name[:1].upper() in 'AEIOU' else 'a'} {name}"


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "", cutoff: float = 0.6) -> str:
    """For ``fix=``: a question with the :func:`nearest` name, or ``otherwise`` when nothing is similar enough."""
    close = nearest(name, known, cutoff)
    return f"did you mean {close}?" if close else otherwise


#: how Python, Paddle and vendors' libraries say that no memory is left, in small letters
_FULL = (
    "resourceexhausted",
    "out of memory",
    "memory allocation",
    "memory_allocation",
    "cannot allocate memory",
    "can't start new thread",  # no memory for its stack
)


def says_out_of_memory(error: BaseException) -> bool:
    """Whether an error is about memory: by its type, or by the words of an error of Paddle's, which come in several types."""
    if isinstance(error, MemoryError):
        return True
    own = isinstance(error, RuntimeError) or (isinstance(error, OSError) and not error.errno)
    return own and any(word in str(error).lower() for word in _FULL)


def first_line(error: BaseException) -> str:
    """Of an error's text that says something; Paddle puts its traceback before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" -\t")]
    telling = (line for line in lines if "Error" in line or "error" in line)
    return next(telling, lines[-1] if lines else "")
