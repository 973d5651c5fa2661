"""The plugin keeps the rules that every optimizer keeps, also where its only layer is not trained at first."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("optimizer", "lisa")
def test_conformance(check):
    check()
