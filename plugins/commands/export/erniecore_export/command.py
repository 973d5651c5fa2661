"""``ernie export``: a trained model for others to load. The work is in ``exporting.py`` and the exporter plugin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from erniecore.api import UsageError, counted
from erniecore.api.command import JsonOption, did_you_mean, note, opens_models, show, show_json
from erniecore.api.installation import assemble, hub_of, load


@opens_models
def export(
    directory: Annotated[Path, typer.Argument(help="A model directory, a run directory or a checkpoint (step-…).")],
    out: Annotated[Path, typer.Option(help="Where to write; new, empty, or an earlier export.")],
    to: Annotated[
        str,
        typer.Option(
            help="Exporter: hf (Hugging Face format), hf-fp8 (FP8 by blocks), fastdeploy, gguf (llama.cpp), "
            "safetensors (own names), or a plugin's."
        ),
    ] = "hf",
    dtype: Annotated[
        str,
        typer.Option(
            help="float32, bfloat16 or float16, of gguf also q8_0 or q4_0; empty: as the source stores its weights."
        ),
    ] = "",
    push: Annotated[
        str,
        typer.Option(metavar="NAME", help="Then upload it as one commit: hf:owner/name, or hf:owner/name@branch."),
    ] = "",
    prompt_differences: Annotated[
        Literal["error", "warn"],
        typer.Option(
            help="What it is when prompts have other tokens in the export than in training (ERN-K031).",
        ),
    ] = "error",
    as_json: JsonOption = False,
) -> None:
    """Export a model to another format, load the result and compare; fails if anything differs."""
    from erniecore_export.exporting import export_directory

    check_dtype(dtype, to)
    upload = pusher(push) if push else None
    done = export_directory(directory, out, to, {"dtype": dtype} if dtype else {}, prompt_differences)
    pushed = upload(done.path) if upload else ""
    files = sorted(path for path in done.path.rglob("*") if path.is_file())
    if as_json:
        listed = {str(path.relative_to(done.path)): path.stat().st_size for path in files}
        show_json({"path": str(done.path), "to": to, "files": listed, "notes": done.notes, "pushed": pushed})
        return
    for text in done.notes:
        note(f"note: {text}")
    total = sum(path.stat().st_size for path in files)
    show(f"{done.path}: {counted(len(files), 'file')}, {total:,} bytes, exported to {to}")
    if pushed:
        show(f"pushed to {pushed}")


def pusher(name: str) -> Callable[[Path], str]:
    """What uploads a directory as ``name`` and returns the name with its commit. Raises ``UsageError`` for what is no name on a
    hub, ``PluginNotFound`` for a hub that is not installed: both before anything is exported."""
    hub = hub_of(name)
    if hub is None:
        raise UsageError("this is no name on a hub", where="--push", found=name, expected="hf:owner/name")
    return lambda directory: str(
        assemble({"reader": hub}).call(hub, "ernie_push_model", name=name, directory=directory)
    )


def check_dtype(dtype: str, to: str) -> None:
    """Raises ``UsageError`` for a word that is no dtype of the exporter ``to``, ``PluginNotFound`` if there is no such one."""
    field = load("exporter", to).Config.model_fields.get("dtype")
    known = [word for word in get_args(field.annotation) if word] if field is not None else []
    if dtype and known and dtype not in known:
        raise UsageError(
            "no such dtype",
            where="--dtype",
            found=dtype,
            expected="one of " + ", ".join(known),
            fix=did_you_mean(dtype, known),
        )
