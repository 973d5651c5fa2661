"""The tutorial that publishes a method: as short as it says, and the same method as in the example."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "tutorials" / "publish-a-method.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["plugin", "encoder", "objective"])
def test_files_of_the_page_are_those_of_the_example(name):
    source = ROOT / "examples" / "acme_plugin" / "erniecore_acme" / "dpo" / f"{name}.py"
    assert source.read_text(encoding="utf-8").replace("erniecore_acme.dpo", "erniecore_acme_dpo") in TEXT


def test_at_most_fifteen_commands():
    assert 0 < sum(line.startswith("$ ") for line in TEXT.splitlines()) <= 15
