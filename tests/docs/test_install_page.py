"""The page about installation names extras that there are, and the distributions that a training run needs."""

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_extras_of_the_page_exist():
    named = {extra.strip() for found in re.findall(r"erniecore\[([^\]]+)\]", PAGE) for extra in found.split(",")}
    assert len(named) > 20
    assert not named - set(EXTRAS)


def test_the_smallest_set_is_written_with_the_version_of_paddle_that_the_core_wants():
    (paddle,) = EXTRAS["cpu"]
    smallest = re.findall(r"^(?:small/bin/)?pip install .*erniecore-formats.*$", PAGE, re.MULTILINE)
    assert len(smallest) == 2
    for line in smallest:
        assert f"erniecore erniecore-ernie45 erniecore-sft erniecore-formats '{paddle}'" in line
