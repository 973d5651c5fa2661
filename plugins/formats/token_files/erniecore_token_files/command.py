"""``ernie data build``: token files for pre-training. No paddle; the work is in ``building.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from erniecore.api import EnvironmentFault
from erniecore.api.command import JsonOption, RayOption, load_settings, opens_models, show, show_json


@opens_models
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
        float, typer.Option(min=0, max=1, help="Fraction of bad rows up to which files are written.")
    ] = 0.0,
    workers: Annotated[int, typer.Option("--workers", min=0, help="Processes; 0: this one.")] = 0,
    ray: RayOption = "",
    as_json: JsonOption = False,
) -> None:
    """Tokenize documents once, into indexed token files that every run maps into memory. Method `pt` trains on them."""
    from erniecore_text.opening import open_tokenizer

    from erniecore.api.rows import Source, resolve, workers_of
    from erniecore_token_files.building import WholeDocuments, describe
    from erniecore_token_files.building import build as build_files

    default = "text" if document and format == "auto" else format
    words = [f"formats.{default}.document={document}"] if document else []
    sections = load_settings(None, words, complete=False).settings.formats
    found, _ = open_tokenizer(tokenizer)
    sources = resolve([Source(path=str(file)) for file in files], default, sections)
    encoder = WholeDocuments(found, append_eod=append_eod)
    try:
        report = build_files(sources, encoder, out, workers=workers_of(workers, ray), max_drop=max_drop)
    except OSError as error:
        raise EnvironmentFault(
            f"the token files cannot be written: {error.strerror}",
            where=str(error.filename or out),
            fix="free space there or choose another --out; nothing was left behind",
            code="ERN-E010",
        ) from error
    if as_json:
        show_json(report)
    else:
        show(describe(report))
