"""The flags that mean the same in every command, and the ``[FILE] [section.key=value …]`` words before them.

Declares; loads nothing. Commands say ``@takes()`` and ``chosen: Chosen = NOTHING``, and hand both to the settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from erniecore.errors import UsageError

R = TypeVar("R")

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE] [SECTION.KEY=VALUE]...", help="A settings file, then single settings.", show_default=False
    ),
]
#: the flags that are settings, in the order in which help lists them
FLAGS: Mapping[str, Any] = {
    "model": Annotated[str | None, typer.Option("--model", metavar="NAME|DIR", help="Model plugin or directory.")],
    "method": Annotated[str | None, typer.Option("--method", metavar="NAME", help="What is learned, e.g. sft.")],
    "adapter": Annotated[str | None, typer.Option("--adapter", metavar="NAME", help="Trainable addition.")],
    "quantizer": Annotated[str | None, typer.Option("--quantizer", metavar="NAME", help="Low-bit weights.")],
    "device": Annotated[str | None, typer.Option("--device", metavar="NAME", help="Where to compute; default cpu.")],
    "parallel": Annotated[str | None, typer.Option("--parallel", metavar="NAME", help="How ranks share the model.")],
    "callback": Annotated[list[str] | None, typer.Option("--callback", metavar="NAME", help="Watches the run.")],
    "scorer": Annotated[list[str] | None, typer.Option("--scorer", metavar="NAME", help="Scores answers (grpo).")],
    "data": Annotated[list[str] | None, typer.Option("--data", metavar="FILE...", help="Training data.")],
    "format": Annotated[str | None, typer.Option("--format", metavar="NAME", help="Format of the data; default auto.")],
    "out": Annotated[str | None, typer.Option("--out", metavar="DIR", help="Where to write.")],
}
#: what a command got of ``FLAGS``, by name
Chosen = Mapping[str, Any]
NOTHING: Chosen = MappingProxyType({})
NprocOption = Annotated[
    int,
    typer.Option(
        "--nproc",
        "--nproc-per-node",
        metavar="N",
        min=0,
        help="Processes on this machine; default as `parallel` needs.",
    ),
]
NodesOption = Annotated[
    int, typer.Option("--nodes", "--nnodes", metavar="N", min=1, help="Machines; the same command on each.")
]
NodeRankOption = Annotated[
    int, typer.Option("--node-rank", metavar="N", min=0, help="Which of the machines this is, from 0.")
]
MasterOption = Annotated[
    str, typer.Option("--master", metavar="HOST:PORT", help="Where the first machine listens for the others.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def split_words(words: list[str] | None) -> tuple[Path | None, list[str]]:
    """The settings file (or the resolved.yaml of a run directory) and the ``section.key=value`` words.

    Raises ``UsageError`` for two files, and for a word that is neither.
    """
    files = [w for w in words or () if "=" not in w or Path(w).is_file()]
    for word in files:
        if word.removesuffix(".gz").endswith((".jsonl", ".json")) and not _is_settings(word):
            raise UsageError(f"{word!r} is a data file, not a settings file", fix=f"--data {word}")
        if not Path(word).exists() and not word.endswith((".yaml", ".yml")):
            fix = f"{word}=VALUE sets a value" if "." in word else "give one YAML file, then section.key=value words"
            raise UsageError(f"{word!r} is neither a settings file nor section.key=value", fix=fix)
    if len(files) > 1:
        fix = "a file can name others with `extends:`; data files go after --data"
        raise UsageError("more than one settings file", found=" ".join(files), fix=fix)
    return (settings_file(files[0]) if files else None), [w for w in words or () if w not in files]


def _is_settings(word: str) -> bool:
    """Whether a JSON file holds settings of ERNIEKit, not data."""
    from erniecore.config.sources import is_erniekit_file

    path = Path(word)
    return word.endswith(".json") and path.is_file() and path.stat().st_size < 1 << 20 and is_erniekit_file(path)


def settings_file(word: str) -> Path:
    """The file for a word: itself, or ``resolved.yaml`` in a run directory."""
    path = Path(word)
    return path / "resolved.yaml" if path.is_dir() else path


def takes(*names: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """A command gets the flags of ``names`` (all of ``FLAGS``, if none are named) where its parameter ``chosen`` stands, and
    their values in that parameter."""
    wanted = names or tuple(FLAGS)

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        hints = get_type_hints(command, include_extras=True)
        parameters: list[Parameter] = []
        for name, parameter in signature(command).parameters.items():
            if name == "chosen":
                kind = Parameter.POSITIONAL_OR_KEYWORD
                parameters += [Parameter(n, kind, default=None, annotation=FLAGS[n]) for n in wanted]
            else:
                parameters.append(parameter.replace(annotation=hints[name]))

        @wraps(command)
        def with_flags(**values: Any) -> R:
            return command(chosen={name: values.pop(name) for name in wanted}, **values)

        with_flags.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        with_flags.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return with_flags

    return decorate
