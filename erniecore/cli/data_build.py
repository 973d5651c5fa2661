"""``ernie data build``: token files for pre-training. No paddle; the work is in ``erniecore.data.token_files_build``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from erniecore.cli import render
from erniecore.cli.options import JsonOption
from erniecore.errors import EnvironmentFault


def build(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Documents: text, JSON, parquet, data sets.")],
    tokenizer: Annotated[
        Path, typer.Option("--tokenizer", metavar="DIR", help="Tokenizer directory, or a model directory with one.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="PREFIX", help="Writes PREFIX.bin and PREFIX.idx.")],
    format: Annotated[
        str, typer.Option("--format", metavar="NAME", help="Format plugin; auto: the one that fits.")
    ] = "auto",
    document: Annotated[
        str, typer.Option("--document", metavar="UNIT", help="What a document of a text file is; see the format.")
    ] = "",
    append_eod: Annotated[
        bool, typer.Option("--append-eod/--no-append-eod", help="Put the end token behind every document.")
    ] = True,
    max_drop: Annotated[
        float, typer.Option(min=0, max=1, help="Share of bad rows up to which files are written.")
    ] = 0.0,
    workers: Annotated[int, typer.Option("--workers", min=0, help="Processes; 0: this one.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Tokenise documents once, into indexed token files that every run maps into memory. Method `pt` trains on them."""
    from erniecore.cli.data import open_tokenizer
    from erniecore.config.core import Source
    from erniecore.data.sources import resolve
    from erniecore.data.token_files_build import WholeDocuments, describe
    from erniecore.data.token_files_build import build as build_files

    sections = _sections(format, document) if document else None
    found, _ = open_tokenizer(tokenizer)
    default = "text" if document and format == "auto" else format
    sources = resolve([Source(path=str(file)) for file in files], default, sections)
    encoder = WholeDocuments(found, append_eod=append_eod)
    try:
        report = build_files(sources, encoder, out, workers=workers, max_drop=max_drop)
    except OSError as error:
        raise EnvironmentFault(
            f"the token files cannot be written: {error.strerror}",
            where=str(error.filename or out),
            fix="free space there or choose another --out; nothing was left behind",
            code="ERN-E010",
        ) from error
    if as_json:
        render.show_json(report)
    else:
        render.show(describe(report))


def _sections(format: str, document: str) -> dict[str, Any]:
    """The format's own section with this unit of documents; raises as a run's settings would."""
    from pydantic import ValidationError

    from erniecore import registry
    from erniecore.errors import UsageError

    name = "text" if format == "auto" else format
    config = registry.load("format", name).Config
    try:
        return {name: config.model_validate({"document": document})}
    except ValidationError as error:
        message = "; ".join(part["msg"] for part in error.errors())
        raise UsageError(f"format {name}: {message}", where="--document", found=document) from error
