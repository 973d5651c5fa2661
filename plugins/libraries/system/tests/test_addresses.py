"""Which addresses only this machine reaches."""

import pytest
from erniecore_system.addresses import is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost", "::ffff:127.0.0.1"])
def test_this_machine_alone(host):
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "localhost.example.org", "example.org", "", "::ffff:10.0.0.1", "0", "127.1"]
)
def test_others_too(host):
    assert not is_loopback(host)
