"""Pass 2: validate a section as strict JSON. What is wrong with one is said by ``problems.py``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pydantic import TypeAdapter, ValidationError

from erniecore.config.tree import Leaf, Tree, plain


def strict(adapter: TypeAdapter[Any], node: Leaf | Tree) -> Any:
    """``node`` as strict JSON: ``"yes"`` is not a truth value and ``"5"`` is not a number. What was typed on a command
    line or in the environment (``run.name=2024``) is text where text is due. Raises ``ValidationError``."""
    try:
        return adapter.validate_json(json.dumps(plain(node)), strict=True)
    except ValidationError as error:
        as_text = _as_text(node, error.errors(include_url=False))
        if as_text is None:
            raise
    return adapter.validate_json(json.dumps(plain(as_text)), strict=True)


def _as_text(node: Leaf | Tree, errors: Iterable[Any]) -> Leaf | Tree | None:
    """``node`` with the typed text where an error wants text; ``None`` when none does."""
    wanted = {tuple(e["loc"]) for e in errors if e["type"] == "string_type"}
    found = False

    def visit(child: Leaf | Tree, path: tuple[str, ...]) -> Leaf | Tree:
        nonlocal found
        if isinstance(child, dict):
            return {k: visit(c, (*path, k)) for k, c in child.items()}
        if path in wanted and child.text is not None and not isinstance(child.value, (list, dict)):
            found = True
            return Leaf(child.text, child.place)
        return child

    result = visit(node, ())
    return result if found else None
