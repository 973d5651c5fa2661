"""``ernie model init``: a model directory with new weights. The work is in ``new_model.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from erniecore.api.command import JsonOption, note, show, show_json


def init(
    model: Annotated[str, typer.Option(help="Model plugin, e.g. ernie45.")],
    tokenizer: Annotated[Path, typer.Option(help="Directory with the tokenizer; it decides the vocabulary.")],
    out: Annotated[Path, typer.Option(help="Where to write; new, empty, or a model directory that ernie wrote.")],
    size: Annotated[
        str, typer.Option(help="A recipe's name, or key=value,… on top of `tiny`, e.g. hidden_size=256.")
    ] = "tiny",
    template: Annotated[
        str,
        typer.Option(help="Chat template as in model.template: a name or a .jinja file [as published for this size]."),
    ] = "",
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the random weights.")] = 42,
    dtype: Annotated[
        str, typer.Option(help="Of the weights: float32, bfloat16 or float16; routers stay float32.")
    ] = "float32",
    shard_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Most bytes of one file of weights, e.g. 500MB or 2GiB.")
    ] = "5GB",
    as_json: JsonOption = False,
) -> None:
    """Write a model with random weights, its tokenizer and chat template in the Hugging Face format."""
    from erniecore_model_init.new_model import init_model

    made = init_model(
        model, size, tokenizer, out, seed_value=seed, template=template, dtype=dtype, shard_size=shard_size
    )
    if as_json:
        show_json({"path": str(made.path), "parameters": made.parameters, "architecture": made.architecture})
        return
    shown = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
    facts = ", ".join(f"{key} {made.architecture[key]}" for key in shown if key in made.architecture)
    show(f"{made.path}: {made.parameters:,} parameters, random weights ({facts})")
    for text in made.notes:
        note(f"note: {text}")
