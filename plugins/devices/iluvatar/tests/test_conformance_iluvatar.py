"""The plugin keeps the rules that every device keeps; what needs the accelerator is skipped where there is none."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("device", "iluvatar")
def test_conformance(check):
    check()
