"""``ernie tokenizer``: train a tokenizer on data files. No paddle; the work is in ``erniecore_text.training``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from erniecore.api import EnvironmentFault, UsageError
from erniecore.api.command import JsonOption, new_group, note, show, show_json

app = new_group("Train a tokenizer.")


@app.callback()
def _group() -> None:
    """Train a tokenizer."""


@app.command()
def train(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Texts (.txt) or data files (.json, .jsonl), also .gz.")
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where to write; files of a tokenizer are replaced.")
    ],
    vocab_size: Annotated[
        int | None,
        typer.Option(
            "--vocab-size",
            min=1,
            metavar="N",
            help="Ids in all, special tokens included; the nearest number that the text allows. Default: 8000.",
        ),
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Refuse a --vocab-size that the text does not allow.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a SentencePiece tokenizer with ERNIE's special tokens; every string of data files is a text."""
    from erniecore_text.training import USUAL_SIZE, read_texts, train_nearest
    from erniecore_text.training import train as train_tokenizer

    if exact and vocab_size is None:
        raise UsageError("--exact needs a size", fix="add --vocab-size N")
    if exact and vocab_size is not None:
        tokenizer = train_tokenizer(read_texts(files), vocab_size)
    else:
        tokenizer = train_nearest(lambda: read_texts(files), vocab_size or USUAL_SIZE)
    if vocab_size not in (None, tokenizer.vocab_size):
        note(f"warning: the text does not allow {vocab_size} ids; took {tokenizer.vocab_size} (--exact refuses)")
    try:
        written = tokenizer.save(out)
    except OSError as error:
        raise EnvironmentFault(
            f"the tokenizer cannot be written: {error.strerror}",
            where=str(error.filename or out),
            fix="free space there or choose another --out; files that were there are unchanged",
            code="ERN-E010",
        ) from error
    if as_json:
        names = [path.name for path in written]
        facts = {"path": str(out), "vocab_size": tokenizer.vocab_size, "files": names}
        show_json({**facts, "special_tokens": dict(tokenizer.special_tokens)})
        return
    show(f"{out}: {tokenizer.vocab_size} ids, {len(tokenizer.special_tokens)} of them special tokens")
