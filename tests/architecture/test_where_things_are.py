"""The page that leads from the command to the loss: eight stops, whose files have the functions that they name."""

import ast
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "where-things-are.md"
STOP = re.compile(r"^\| (\d) \| \[([^\]]+)\]\(([^)]+)\) \| `(\w+)` \|", re.MULTILINE)


def test_every_stop_has_its_function():
    stops = STOP.findall(PAGE.read_text())
    assert [number for number, *_ in stops] == list("12345678")
    for _, label, link, name in stops:
        file = (PAGE.parent / link).resolve()
        assert file.as_posix().endswith(label)
        functions = {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}
        assert name in functions, f"{label} has no function {name}"


def test_what_the_stops_mention_is_there():
    """Names in backticks in the last column are functions or classes of a file that the page links."""
    text = PAGE.read_text()
    linked = [(PAGE.parent / link).resolve() for link in re.findall(r"\]\(([^)]+\.py)\)", text)]
    source = "\n".join(file.read_text() for file in linked)
    mentioned = {name for row in re.findall(r"^\| \d .*$", text, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert len(mentioned) > 10
    for name in mentioned:
        assert re.search(rf"\b(def|class) {name}\b", source), name
