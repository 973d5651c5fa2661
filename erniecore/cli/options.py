"""The flags that mean the same in every command, and the ``[FILE] [section.key=value …]`` words before them.

Declares; loads nothing. Commands take ``model: ModelOption = None`` and so on, and hand the words to the settings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from erniecore.errors import UsageError

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE] [SECTION.KEY=VALUE]...", help="A settings file, then single settings.", show_default=False
    ),
]
ModelOption = Annotated[str | None, typer.Option("--model", metavar="NAME|DIR", help="Model plugin or directory.")]
MethodOption = Annotated[str | None, typer.Option("--method", metavar="NAME", help="What is learned, e.g. sft.")]
AdapterOption = Annotated[str | None, typer.Option("--adapter", metavar="NAME", help="Trainable addition.")]
QuantizerOption = Annotated[str | None, typer.Option("--quantizer", metavar="NAME", help="Low-bit weights.")]
DeviceOption = Annotated[str | None, typer.Option("--device", metavar="NAME", help="Where to compute; default cpu.")]
ParallelOption = Annotated[str | None, typer.Option("--parallel", metavar="NAME", help="How ranks share the model.")]
CallbackOption = Annotated[list[str] | None, typer.Option("--callback", metavar="NAME", help="Watches the run.")]
ScorerOption = Annotated[list[str] | None, typer.Option("--scorer", metavar="NAME", help="Scores answers (grpo).")]
DataOption = Annotated[list[str] | None, typer.Option("--data", metavar="FILE...", help="Training data.")]
FormatOption = Annotated[str | None, typer.Option("--format", metavar="NAME", help="Format of the data; default auto.")]
OutOption = Annotated[str | None, typer.Option("--out", metavar="DIR", help="Where to write.")]
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


def selection_flags(values: dict[str, Any]) -> dict[str, Any]:
    """Of a command's ``locals()``, the flags that are settings."""
    names = ("model", "method", "adapter", "quantizer", "device", "parallel", "callback", "scorer")
    return {n: values[n] for n in (*names, "data", "format", "out", "resume") if n in values}
