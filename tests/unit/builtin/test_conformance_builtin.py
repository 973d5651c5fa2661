"""The core's own plugins keep the rules that every plugin keeps."""

import pytest
from erniecore_conformance import assert_conforms, parametrize_checks


@parametrize_checks("device", "cpu")
def test_conformance_of_cpu(check):
    check()


@parametrize_checks("parallel", "single")
def test_conformance_of_single(check):
    check()


@parametrize_checks("format", "auto")
def test_conformance_of_auto(check):
    check()


@parametrize_checks("exporter", "hf")
def test_conformance_of_hf(check):
    check()


@parametrize_checks("exporter", "safetensors")
def test_conformance_of_safetensors(check):
    check()


@parametrize_checks("callback", "console")
def test_conformance_of_console(check):
    check()


@parametrize_checks("callback", "events")
def test_conformance_of_events(check):
    check()


@pytest.mark.parametrize("name", ["gz", "file"])
def test_conformance_of_readers(name):
    assert_conforms("reader", name)
