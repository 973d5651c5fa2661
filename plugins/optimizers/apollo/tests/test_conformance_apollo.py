"""The plugin keeps the rules that every optimizer keeps, also where every matrix is projected."""

from typing import ClassVar

from erniecore_apollo.plugin import ApolloPlugin
from erniecore_conformance import parametrize_checks


@parametrize_checks("optimizer", "apollo")
def test_conformance(check):
    check()


class Narrow(ApolloPlugin):
    """Of rank 2, with another projection every second step, for the small matrices of the checks."""

    conformance_config: ClassVar = {"rank": 2, "period": 2}


narrow = Narrow()


@parametrize_checks("optimizer", "apollo", target=f"{__name__}:narrow")
def test_conformance_of_a_low_rank(check):
    check()
