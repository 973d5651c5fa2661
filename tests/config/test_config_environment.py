"""Variables that start with ERNIE_ and are no settings."""

import re
from pathlib import Path

from erniecore.config.compose import load

ROOT = Path(__file__).parents[2]
FLAGS = {"model": "toy", "method": "prefer"}


def test_names_that_are_not_settings_pass(toys):
    environ = {"ERNIE_PLUGINS": "", "ERNIE_REAL_DATA": "x", "ERNIE_DEBUG": "1", "ERNIEBOT": "y", "PATH": "z"}
    assert load(None, [], FLAGS, environ).settings.run.seed == 42


def test_what_tests_and_benchmarks_are_told_is_no_setting(toys):
    asked = re.compile(
        r"""environ(?:\.get\(|\[)"(ERNIE_\w+)"|"(ERNIE_\w+)"(?: not)? in os\.environ|(ERNIE_BENCH_[A-Z]+)"""
    )
    files = [*ROOT.glob("benchmarks/**/*.*"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("plugins/*/*/tests/*.py")]
    texts = [file.read_text(encoding="utf-8") for file in files if file.suffix in (".py", ".md")]
    names = {next(filter(None, groups)) for text in texts for groups in asked.findall(text)}
    assert {"ERNIE_HF_PYTHON", "ERNIE_REAL_DATA", "ERNIE_BENCH_PF"} <= names
    assert load(None, [], FLAGS, dict.fromkeys(names, "x")).settings.run.seed == 42
