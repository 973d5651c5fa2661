"""The plugins keep the rules that their kinds keep."""

from erniecore_conformance import parametrize_checks


@parametrize_checks("method", "controllable")
def test_conformance_of_controllable(check):
    check()


@parametrize_checks("format", "attributes")
def test_conformance_of_attributes(check):
    check()


@parametrize_checks("command", "write")
def test_conformance_of_write(check):
    check()
