"""Every error code has one meaning, is written down, and is used."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from erniecore import codes, errors

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"ERN-[A-Z]\d{3}")
#: where codes get their meaning; everywhere else they are used
TABLES = [ROOT / "erniecore/errors.py", ROOT / "erniecore/codes.py"]
SOURCES = [
    path
    for top in ("erniecore", "plugins")
    for path in sorted((ROOT / top).rglob("*.py"))
    if "tests" not in path.relative_to(ROOT).parts and path not in TABLES
]
CLASSES = {
    cls.code: cls for cls in vars(errors).values() if inspect.isclass(cls) and issubclass(cls, errors.ErnieError)
}
DATA = {name: value for name, value in vars(codes).items() if isinstance(value, str) and CODE.fullmatch(value)}


def test_every_class_has_a_code_of_its_own():
    classes = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, errors.ErnieError)]
    assert len(CLASSES) == len(classes)


def test_the_tables_do_not_give_a_code_two_meanings():
    tables = [set(CLASSES) - {codes.ROW}, set(errors.CODES), set(codes.MEANINGS)]  # RowError is codes.ROW
    assert sum(map(len, tables)) == len(set.union(*tables))


def test_two_codes_never_mean_the_same():
    meanings = [*errors.CODES.values(), *codes.MEANINGS.values()]
    assert len(meanings) == len(set(meanings))


def test_every_data_code_has_a_meaning():
    assert sorted(DATA.values()) == sorted(codes.MEANINGS)


def test_every_code_in_the_source_is_documented():
    documented = {*CLASSES, *errors.CODES, *codes.MEANINGS}
    used = {str(p.relative_to(ROOT)): set(CODE.findall(p.read_text(encoding="utf-8"))) for p in SOURCES}
    assert {name: found - documented for name, found in used.items() if found - documented} == {}


def test_the_core_names_data_codes_instead_of_spelling_them():
    core = {str(p.relative_to(ROOT)): p for p in SOURCES if p.relative_to(ROOT).parts[0] == "erniecore"}
    spelled = {name: set(CODE.findall(p.read_text(encoding="utf-8"))) & set(codes.MEANINGS) for name, p in core.items()}
    assert {name: found for name, found in spelled.items() if found} == {}


def test_every_further_code_is_used():
    text = "".join(path.read_text(encoding="utf-8") for path in SOURCES)
    assert set(errors.CODES) <= set(CODE.findall(text))


def test_every_data_code_is_used():
    text = "".join(path.read_text(encoding="utf-8") for path in SOURCES)
    used = {*re.findall(r"\b[A-Z]\w*\b", text), *CODE.findall(text)}
    unused = [name for name, value in DATA.items() if not {name, value} & used]
    assert set(unused) <= {"ROW"}  # the code of RowError itself


def test_codes_that_the_formats_spell_out_are_those_of_the_table():
    checks = pytest.importorskip("erniecore_formats.checks")
    assert (checks.MISSING, checks.WRONG_TYPE, checks.EMPTY_TEXT) == (
        codes.MISSING_FIELD,
        codes.WRONG_TYPE,
        codes.EMPTY_TEXT,
    )
    assert (checks.LENGTHS_DIFFER, checks.UNKNOWN_ROLE) == (codes.LENGTHS_DIFFER, codes.UNKNOWN_ROLE)
    assert (checks.ROLE_ORDER, checks.BAD_VALUE) == (codes.ROLE_ORDER, codes.BAD_VALUE)


def test_a_thread_that_cannot_start_is_no_memory():
    """What Python says where a limit of memory leaves no room for a stack."""
    code = (
        "import resource, threading\n"
        "from erniecore.errors import says_out_of_memory\n"
        "threading.stack_size(1 << 30)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))\n"
        "try:\n    threading.Thread(target=print).start()\n"
        "except RuntimeError as error:\n    assert says_out_of_memory(error), error\n"
        "else:\n    raise SystemExit('a thread was started')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
