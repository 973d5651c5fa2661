"""The plugin keeps the rules that every method keeps; without students it is pre-training."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("method", "online-distill")
def test_conformance_of_online_distill(check):
    check()
