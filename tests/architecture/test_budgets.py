"""Size budgets: a file fits in a head, a function on a screen, and the typical file is short."""

import ast
import statistics
from pathlib import Path

import pytest

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


def names(paths):
    return [str(p.relative_to(ROOT)) for p in paths]


@pytest.mark.parametrize("path", SOURCES, ids=names(SOURCES))
def test_file_fits_the_budget(path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_FILE, f"{path.relative_to(ROOT)} has {lines} lines; split it by subject (limit {MAX_FILE})"


@pytest.mark.parametrize("path", PRODUCT, ids=names(PRODUCT))
def test_functions_fit_the_budget(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = {f.name: f.end_lineno - f.lineno + 1 for f in functions if f.end_lineno - f.lineno + 1 > MAX_FUNCTION}
    assert not long, f"functions over {MAX_FUNCTION} lines in {path.relative_to(ROOT)}: {long}"


@pytest.mark.parametrize("path", PRODUCT, ids=names(PRODUCT))
def test_module_says_what_it_is(path):
    text = path.read_text(encoding="utf-8")
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), f"{path.relative_to(ROOT)}: open with a paragraph: what it is"


def test_the_typical_file_is_short():
    sizes = [len(p.read_text(encoding="utf-8").splitlines()) for p in PRODUCT if p.name != "__init__.py"]
    assert statistics.median(sizes) <= MAX_MEDIAN_FILE
