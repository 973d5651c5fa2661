"""The plugin keeps the rules that every adapter keeps, also with the series in place of the inverse."""

from typing import ClassVar

from erniecore_conformance import parametrize_checks
from erniecore_oft.plugin import OftPlugin


@parametrize_checks("adapter", "oft")
def test_conformance(check):
    check()


class Series(OftPlugin):
    conformance_config: ClassVar = {"block_size": 8, "neumann_terms": 5}


series = Series()


@parametrize_checks("adapter", "oft", target=f"{__name__}:series")
def test_conformance_of_the_series(check):
    check()
