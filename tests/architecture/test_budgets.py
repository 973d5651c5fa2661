"""Size budgets: a file fits in a head, a function on a screen, and the typical file is short."""

import ast
import statistics
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_FILE, MAX_FUNCTION, MAX_MEDIAN_FILE = 400, 50, 160

SOURCES = sorted(
    p
    for top in ("erniecore", "plugins", "third_party_kernels", "examples", "benchmarks", "docs", "tests")
    for p in (ROOT / top).rglob("*.py")
    if not {".venv", "node_modules", "templates"} & set(p.relative_to(ROOT).parts)
    and not any("venv" in q for q in p.parts)
)
#: Files of the product itself (tests may be long lists of cases, but not files of any size).
PRODUCT = [p for p in SOURCES if "tests" not in p.relative_to(ROOT).parts]


@cache
def outlined(path):
    """(docstring, [(name, lines) of each function]) of a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return ast.get_docstring(tree), [(f.name, f.end_lineno - f.lineno + 1) for f in functions]


def test_files_fit_the_budget():
    sizes = {str(p.relative_to(ROOT)): len(p.read_text(encoding="utf-8").splitlines()) for p in SOURCES}
    long = {name: size for name, size in sizes.items() if size > MAX_FILE}
    assert not long, f"files over {MAX_FILE} lines; split them by subject: {long}"


def test_functions_fit_the_budget():
    sizes = {f"{p.relative_to(ROOT)}: {name}": lines for p in PRODUCT for name, lines in outlined(p)[1]}
    long = {name: size for name, size in sizes.items() if size > MAX_FUNCTION}
    assert not long, f"functions over {MAX_FUNCTION} lines: {long}"


def test_modules_say_what_they_are():
    silent = [str(p.relative_to(ROOT)) for p in PRODUCT if p.read_text(encoding="utf-8").strip() and not outlined(p)[0]]
    assert not silent, f"open with a paragraph, what it is: {silent}"


def test_the_typical_file_is_short():
    sizes = [len(p.read_text(encoding="utf-8").splitlines()) for p in PRODUCT if p.name != "__init__.py"]
    assert statistics.median(sizes) <= MAX_MEDIAN_FILE
