"""``ernie model``: ``init``, a model directory with new weights, and ``check``, a directory against what servers expect. The
work is in ``engine/models/new_model.py`` and ``engine/exporting/serving_contract.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from erniecore.cli import render
from erniecore.cli.group import new_group
from erniecore.cli.options import JsonOption

app = new_group("Create and check model directories.")


@app.callback()
def _group() -> None:
    """Create and check model directories."""


@app.command()
def init(
    model: Annotated[str, typer.Option(help="Model plugin, e.g. ernie45.")],
    tokenizer: Annotated[Path, typer.Option(help="Directory with the tokenizer; it decides the vocabulary.")],
    out: Annotated[Path, typer.Option(help="Where to write; new, empty, or a model directory that ernie wrote.")],
    size: Annotated[
        str, typer.Option(help="A recipe's name, or key=value,… on top of `tiny`, e.g. hidden_size=256.")
    ] = "tiny",
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the random weights.")] = 42,
    as_json: JsonOption = False,
) -> None:
    """Write a model with random weights, its tokenizer and chat template in the public layout."""
    from erniecore.engine.models.new_model import init_model

    made = init_model(model, size, tokenizer, out, seed_value=seed)
    if as_json:
        render.show_json({"path": str(made.path), "parameters": made.parameters, "architecture": made.architecture})
        return
    shown = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
    facts = ", ".join(f"{key} {made.architecture[key]}" for key in shown if key in made.architecture)
    render.show(f"{made.path}: {made.parameters:,} parameters, random weights ({facts})")
    for note in made.notes:
        render.note(f"note: {note}")


@app.command()
def check(
    directory: Annotated[Path, typer.Argument(help="A model directory, of whatever origin.")],
    contract: Annotated[str, typer.Option(help="Whose rules: hf (public layout) or fastdeploy.")] = "hf",
    as_json: JsonOption = False,
) -> int:
    """Compare a directory with what servers expect; exit code 0: it keeps every rule, 5: it breaks some, which are listed."""
    from erniecore.engine.exporting.serving_contract import check_directory
    from erniecore.errors import Exit

    broken = check_directory(directory, contract)
    if as_json:
        render.show_json({"path": str(directory), "contract": contract, "broken": [rule._asdict() for rule in broken]})
    elif broken:
        render.show_table(("rule", "where", "found", "expected", "who asks for it"), broken)
    else:
        render.show(f"{directory}: keeps the contract {contract}")
    return int(Exit.CHECKPOINT if broken else Exit.OK)
