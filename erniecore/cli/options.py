"""The flags that all commands share, and the ``[FILE] [section.key=value …]`` arguments before them.

Only declarations; nothing is loaded. A command is decorated with ``@takes()``, has a parameter ``chosen: Chosen = NOTHING`` and
passes it to the settings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

import typer

from erniecore.errors import UsageError
from erniecore.kinds import FLAG_KINDS, Kind

R = TypeVar("R")
_SETTING = re.compile(r"[a-z_]+(\.[\w-]+)*=")

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE] [SECTION.KEY=VALUE]...", help="A settings file, and single settings.", show_default=False
    ),
]


def _installed(kind: str) -> Callable[[str], list[str]]:
    """For shells that complete a word: the installed plugins of a kind whose names begin with it. Imports none of them."""

    def complete(incomplete: str) -> list[str]:
        from erniecore import registry

        return sorted({entry.name for entry in registry.entries(kind) if entry.name.startswith(incomplete)})

    return complete


def _flag(kind: Kind) -> Any:
    """The option that selects the plugin of a kind, or the plugins."""
    option = typer.Option(kind.flag, metavar=kind.metavar, help=kind.help, autocompletion=_installed(kind.name))
    return Annotated[list[str] | None, option] if kind.many and not kind.sets else Annotated[str | None, option]


#: the flags that are settings, in the order in which help lists them
FLAGS: Mapping[str, Any] = {
    **{kind.name: _flag(kind) for kind in FLAG_KINDS},
    "data": Annotated[list[str] | None, typer.Option("--data", metavar="FILE...", help="Training data.")],
    "out": Annotated[str | None, typer.Option("--out", metavar="DIR", help="Output directory.")],
}
#: what a command got of ``FLAGS``, by name
Chosen = Mapping[str, Any]
NOTHING: Chosen = MappingProxyType({})
NprocOption = Annotated[
    int | None,
    typer.Option(
        "--nproc",
        "--nproc-per-node",
        metavar="N",
        min=0,
        help="Processes on this machine; default: as many as `parallel` needs.",
    ),
]
NodesOption = Annotated[
    int | None,
    typer.Option("--nodes", "--nnodes", metavar="N", min=1, help="Number of machines; run the same command on each."),
]
NodeRankOption = Annotated[
    int | None, typer.Option("--node-rank", metavar="N", min=0, help="Rank of this machine, from 0.")
]
MasterOption = Annotated[
    str | None,
    typer.Option("--master", metavar="HOST:PORT", help="Address at which the first machine listens for the others."),
]
_FollowLinks = Annotated[
    bool,
    typer.Option("--follow-links", help="Follow links that lead out of a model directory or an adapter."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RayOption = Annotated[
    str,
    typer.Option(
        "--ray", metavar="ADDRESS", help="Encode on this Ray cluster, or `auto` (erniecore-ray); same result."
    ),
]


def opens_models(command: Callable[..., R]) -> Callable[..., R]:
    """The command has ``--follow-links``, which is ``ERNIE_FOLLOW_LINKS=1`` while it runs, for the processes that it starts
    too."""

    @wraps(command)
    def with_flag(*args: Any, follow_links: bool = False, **values: Any) -> R:
        if not follow_links:
            return command(*args, **values)
        from erniecore.engine.launch import variable

        with variable("ERNIE_FOLLOW_LINKS", "1"):
            return command(*args, **values)

    own = signature(command, eval_str=True).parameters.values()
    flag = Parameter("follow_links", Parameter.KEYWORD_ONLY, default=False, annotation=_FollowLinks)
    with_flag.__signature__ = Signature([*own, flag])  # type: ignore[attr-defined]
    with_flag.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, flag)}
    return with_flag


def split_arguments(args: list[str] | None) -> tuple[Path | None, list[str]]:
    """The settings file (or the resolved.yaml of a run directory) and the ``section.key=value`` overrides.

    Raises ``UsageError`` for two files and for an argument that is neither.
    """
    files = [w for w in args or () if "=" not in w or os.path.isfile(w)]
    for word in files:
        if word.removesuffix(".gz").endswith((".jsonl", ".json")) and not _is_settings(word):
            raise UsageError(f"{word!r} is a data file, not a settings file", fix=f"--data {word}")
        if not os.path.exists(word) and not word.endswith((".yaml", ".yml")):
            fix = f"{word}=VALUE sets a value" if "." in word else "give one YAML file, then section.key=value"
            raise UsageError(f"{word!r} is neither a settings file nor section.key=value", fix=fix)
    if len(files) > 1:
        fix = "a file can name others with `extends:`; data files go after --data"
        raise UsageError("more than one settings file", found=" ".join(files), fix=fix)
    return (settings_file(files[0]) if files else None), [w for w in args or () if w not in files]


def split_files(args: Sequence[str]) -> tuple[list[str], Path | None, list[str]]:
    """Data files, the settings file (or the resolved.yaml of a run directory) and the ``section.key=value`` overrides.

    Raises ``UsageError`` for two settings files."""
    overrides = [w for w in args if _SETTING.match(w) and not os.path.exists(w)]
    rest = [w for w in args if w not in overrides]
    settings = [
        w
        for w in rest
        if w.endswith((".yaml", ".yml")) or os.path.isfile(os.path.join(w, "resolved.yaml")) or _is_settings(w)
    ]
    file, _ = split_arguments(settings)
    return [w for w in rest if w not in settings], file, overrides


def _is_settings(word: str) -> bool:
    """Whether a JSON file holds settings of another toolkit, not data."""
    from erniecore.config.recognize import importer_of_file

    path = Path(word)
    return (
        word.endswith(".json")
        and os.path.isfile(path)
        and path.stat().st_size < 1 << 20
        and importer_of_file(path) is not None
    )


def settings_file(word: str) -> Path:
    """The file for a word: itself, or ``resolved.yaml`` in a run directory."""
    path = Path(word)
    return path / "resolved.yaml" if os.path.isdir(path) else path


def takes(*names: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """A command gets the flags of ``names`` (all of ``FLAGS``, if none are named) where its parameter ``chosen`` stands, and
    their values in that parameter."""
    wanted = names or tuple(FLAGS)

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        parameters: list[Parameter] = []
        # not get_type_hints: before Python 3.11 it wraps what has the default None, and typer no longer sees the argument
        for name, parameter in signature(command, eval_str=True).parameters.items():
            if name == "chosen":
                kind = Parameter.POSITIONAL_OR_KEYWORD
                parameters += [Parameter(n, kind, default=None, annotation=FLAGS[n]) for n in wanted]
            else:
                parameters.append(parameter)

        @wraps(command)
        def with_flags(**values: Any) -> R:
            return command(chosen={name: values.pop(name) for name in wanted}, **values)

        with_flags.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        with_flags.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return with_flags

    return decorate
