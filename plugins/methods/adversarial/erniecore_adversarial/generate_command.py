"""``ernie generate-rows``: rows for the adversarial method, natural paragraphs and what a model makes of their beginnings."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from erniecore_generation import options as generation_options
from erniecore_generation.options import Adapter, Device, Model, Seed, TopK, TopP

from erniecore.api import DataError, UsageError, counted
from erniecore.api.command import note, opens_models, show
from erniecore.api.data import Document
from erniecore_adversarial.sentences import finished, sentences

if TYPE_CHECKING:
    from erniecore_generation.respond import Completion

Data = Annotated[list[Path], typer.Option("--data", metavar="FILE", help="Documents; may be repeated.")]
Out = Annotated[Path, typer.Option("--out", metavar="FILE", help="New file of rows (JSON lines).")]
Sentences = Annotated[
    int, typer.Option("--sentences", min=1, help="The model continues the first 1 to so many sentences of a paragraph.")
]


@opens_models
def generate_rows(
    model: Model,
    data: Data,
    out: Out,
    adapter: Adapter = None,
    format: Annotated[str, typer.Option("--format", metavar="NAME", help="Format of the data.")] = "auto",
    sentence_limit: Sentences = 3,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", min=1, metavar="N", help="Maximum number of new tokens.")
    ] = 512,
    temperature: Annotated[float, typer.Option("--temperature", metavar="T", help="Sampling temperature.")] = 1.0,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = 0,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Paragraphs at a time.")] = 8,
    device: Device = "cpu",
) -> None:
    """Create rows for `--method adversarial`: paragraphs, and a model's continuations of their beginnings.

    An incomplete last sentence is dropped. Paragraphs that are too short, or whose continuation has no complete sentence, are
    skipped and counted.
    """
    if out.exists():
        raise UsageError("the file exists", where=str(out), fix="name another one for --out")
    texts, draw = documents(data, format), random.Random(seed)
    begun = [(text, beginning(text, draw.randint(1, sentence_limit))) for text in texts]
    pairs = [(text, start) for text, start in begun if start]
    bundle, tokenizer = generation_options.open_model(model, device, adapter)
    from erniecore_generation.respond import generate_text

    completions = generate_text(
        bundle.model,
        tokenizer,
        [start for _, start in pairs],
        max_new_tokens=max_new_tokens,
        generation=bundle.generation,
        batch_size=batch_size,
        do_sample=temperature > 0,
        temperature=temperature or 1.0,
        seed=seed,
        **{key: value for key, value in (("top_k", top_k), ("top_p", top_p)) if value is not None},  # type: ignore[arg-type]
    )
    rows = rows_of(pairs, completions)
    if not rows:
        raise DataError("nothing was generated", where=str(data[0]), expected="paragraphs of two sentences and more")
    out.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    show(f"{out}: {counted(len(rows), 'row')} of {counted(len(rows) // 2, 'paragraph')}")
    if left := len(texts) - len(rows) // 2:
        note(f"note: {counted(left, 'paragraph')} left out: one sentence only, or no finished sentence was generated")


def documents(files: Sequence[Path], format: str) -> list[str]:
    """The texts of data files. Raises ``DataError`` for rows that cannot be read, or are no documents."""
    from erniecore_data.reading import read_records

    from erniecore.api.rows import describe

    records, errors = read_records(files, format)
    if errors:
        found = f"the first: {describe(errors[0])}"
        raise DataError(
            f"{counted(len(errors), 'row')} cannot be read", found=found, next=f"ernie data check {files[0]}"
        )
    texts = [record.text for record in records if isinstance(record, Document)]
    if len(texts) < len(records):
        raise DataError("these rows are no documents", where=str(files[0]), expected="plain text")
    return texts


def rows_of(pairs: Sequence[tuple[str, str]], completions: Sequence[Completion]) -> list[dict[str, Any]]:
    """Two rows for each (paragraph, beginning) whose completion has a finished sentence."""
    rows: list[dict[str, Any]] = []
    for (text, start), completion in zip(pairs, completions, strict=True):
        ended = completion.text if completion.finish_reason == "stop" else finished(completion.text)
        if ended.strip():
            rows += [{"paragraph": text, "generated": False}, {"paragraph": start + ended, "generated": True}]
    return rows


def beginning(text: str, count: int) -> str:
    """The first ``count`` sentences, or all but the last one; empty where there are not two."""
    found = sentences(text)
    rest = text[len("".join(found)) :].strip()
    most = len(found) if rest else len(found) - 1
    return "".join(found[: min(count, most)])
