"""Task files that somebody else may have written: what in them would run Python is refused, unless that is allowed.

A task file is YAML of lm-evaluation-harness. Its ``!function`` imports a module beside it, metrics without a registered name
and some kinds of data sets run scripts or unpickle, and Jinja outside of a sandbox reaches everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from erniecore.api import DataError, UsageError

_ALLOW = "read the file; if you trust it, repeat with --allow-code"
#: builders of `datasets` that read pickled objects
_PICKLED = ("pandas", "webdataset", "spark")


def check_task_files(directory: Path) -> None:
    """Refuse task files below ``directory``, and what they include, that would run Python.

    Raises:
        UsageError: no such directory, or a file that would run code. DataError: a file that is no YAML.
    """
    if not directory.is_dir():
        raise UsageError("no such directory", where="--include-path", found=str(directory))
    seen: set[Path] = set()
    for path in sorted(p for pattern in ("*.yaml", "*.yml") for p in directory.rglob(pattern)):
        check_task_file(path.resolve(), seen)


def check_task_file(path: Path, seen: set[Path] | None = None) -> None:
    """The same for one file."""
    seen = set() if seen is None else seen
    if path in seen:
        return
    seen.add(path)
    for line, key, value, tag in _entries(path):
        if tag.startswith("!") and not tag.startswith("!!"):
            raise _refusal("a task file would run Python", path, line, f"{tag} {value}".strip())
        if key == "dataset_path" and (value in _PICKLED or value.endswith(".py")):
            raise _refusal("a task file would run Python that its data set brings", path, line, f"{key}: {value}")
        if key in ("trust_remote_code", "unsafe_code", "hf_evaluate") and value.lower() in ("true", "yes", "on"):
            raise _refusal("a task file would run Python", path, line, f"{key}: {value}")
        if key == "metric" and not _registered(value):
            raise _refusal("a task file has a metric that would run a script", path, line, f"{key}: {value}")
        if key == "include" or (key == "task" and value.endswith((".yaml", ".yml"))):
            included = Path(value) if Path(value).is_absolute() else path.parent / value
            if included.is_file():
                check_task_file(included.resolve(), seen)


def _refusal(message: str, path: Path, line: int, found: str) -> UsageError:
    return UsageError(message, where=f"{path}:{line}", found=found, fix=_ALLOW)


def _registered(metric: str) -> bool:
    import lm_eval.api.metrics  # noqa: F401  # fills the registry
    from lm_eval.api.registry import metric_registry

    return metric in metric_registry


def _entries(path: Path) -> Iterator[tuple[int, str, str, str]]:
    """(line, key that it stands under, value, tag or nothing) of every scalar, and of whatever has a tag; nothing is built."""
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise DataError("a task file cannot be read", where=where, found=str(error).splitlines()[0]) from error
    waiting: list[tuple[str, Any]] = [("", root)] if root is not None else []
    visited: set[int] = set()
    while waiting:
        key, node = waiting.pop()
        if id(node) in visited:  # YAML has anchors
            continue
        visited.add(id(node))
        tag = "" if node.tag.startswith("tag:yaml.org") else node.tag
        if isinstance(node, yaml.ScalarNode):
            yield node.start_mark.line + 1, key, node.value, tag
            continue
        if tag:
            yield node.start_mark.line + 1, key, "", tag
        if isinstance(node, yaml.MappingNode):
            waiting += [(str(name.value), value) for name, value in node.value]
            waiting += [(key, name) for name, _ in node.value if name.tag.startswith("!")]
        else:
            waiting += [(key, value) for value in node.value]


def sandbox_templates() -> None:
    """Let the Jinja templates of tasks reach their row and nothing else, for the rest of this process."""
    from jinja2 import StrictUndefined
    from jinja2.sandbox import SandboxedEnvironment
    from lm_eval import utils

    environment = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
    environment.filters.update(utils.env.filters)
    utils.env = environment
