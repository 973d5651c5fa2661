"""``ernie model check``: a model directory against what servers expect. The rules are in ``rules.py`` and in exporters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from erniecore.api.command import JsonOption, opens_models, show, show_json, show_table


@opens_models
def check(
    directory: Annotated[Path, typer.Argument(help="A model directory, of whatever origin.")],
    contract: Annotated[
        str, typer.Option(help="Whose rules: an exporter, such as hf (Hugging Face format) or fastdeploy.")
    ] = "hf",
    as_json: JsonOption = False,
) -> int:
    """Check a model directory against what servers expect. Exit code 5 if it breaks a rule; all are listed."""
    from erniecore.api import Exit
    from erniecore_model_check.rules import check_directory

    broken = check_directory(directory, contract)
    if as_json:
        show_json({"path": str(directory), "contract": contract, "broken": [rule._asdict() for rule in broken]})
    elif broken:
        show_table(("rule", "where", "found", "expected", "who asks for it"), broken)
    else:
        show(f"{directory}: keeps the contract {contract}")
    return int(Exit.CHECKPOINT if broken else Exit.OK)
