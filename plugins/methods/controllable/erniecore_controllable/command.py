"""``ernie write``: a text under attributes, by a model of the method ``controllable``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from erniecore_generation import options as generation_options
from erniecore_generation.options import Device, MinP, Model, NewTokens, Seed, Temperature, TopK, TopP

from erniecore.api import RowError, UsageError
from erniecore.api.command import JsonOption, opens_models, show, show_json
from erniecore_controllable.plugin import ATTRIBUTES
from erniecore_controllable.rows import Attributes

Keyword = Annotated[list[str] | None, typer.Option("--keyword", metavar="WORD", help="May be repeated.")]
File = Annotated[
    Path | None,
    typer.Option(
        "--attributes", metavar="FILE", help=f"The {ATTRIBUTES} of the run, where the model is no longer in it."
    ),
]


@opens_models
def write(
    model: Model,
    genre: Annotated[str, typer.Option("--genre", metavar="NAME", help="One of method.genres.")] = "",
    topic: Annotated[str, typer.Option("--topic", metavar="TEXT", help="What the text is about.")] = "",
    keyword: Keyword = None,
    sentiment: Annotated[str, typer.Option("--sentiment", metavar="NAME", help="As the rows say it.")] = "",
    words: Annotated[int, typer.Option("--words", min=0, metavar="N", help="About how many words.")] = 0,
    begin: Annotated[str, typer.Option("--begin", metavar="TEXT", help="How the text begins.")] = "",
    attributes: File = None,
    max_new_tokens: NewTokens = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Generate text with given attributes, with a model trained by `--method controllable`.

    The model chooses attributes that are not given. Greedy unless a sampling option is given.
    """
    wanted = Attributes(genre, topic, tuple(keyword or ()), sentiment, words)
    genres = genres_of(model, attributes) if genre else {}
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    sampling = generation_options.sampling_from({}, seed, **options)
    bundle, tokenizer = generation_options.open_model(model, device)
    from erniecore_generation.generate import stop_token_ids
    from erniecore_generation.respond import DEFAULT_NEW_TOKENS
    from erniecore_generation.rollout import roll_out

    from erniecore_controllable.prompt import prompt_ids

    try:
        ids = prompt_ids(tokenizer, genres, wanted)
    except RowError as error:
        raise UsageError(error.message, where="--genre", found=error.found, expected=error.expected) from error
    ids += tokenizer.encode(begin)
    room = int(bundle.architecture.get("max_position_embeddings") or 1 << 20) - len(ids)
    new = max_new_tokens or max(min(DEFAULT_NEW_TOKENS, room), 1)
    [rollout] = roll_out(bundle.model, tokenizer, [ids], sampling=sampling, max_new_tokens=new)
    stops = stop_token_ids(bundle.model, tokenizer, bundle.generation)
    text = begin + tokenizer.decode([i for i in rollout.ids.tolist() if i not in stops])
    if as_json:
        show_json({"text": text, "finished": rollout.finished, "words": len(text.split()), "prompt_ids": ids})
    else:
        show(text)


def genres_of(model: Path, file: Path | None) -> dict[str, int]:
    """Genre -> number of its soft tokens, of the run that the model is from. Raises ``UsageError`` where nothing says it."""
    for path in [file] if file is not None else [model / ATTRIBUTES, model.parent / ATTRIBUTES]:
        if path is not None and path.is_file():
            found: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))["genres"]
            return found
    raise UsageError(
        f"there is no {ATTRIBUTES}", where=str(file or model), fix="name the run, or the file by --attributes"
    )
