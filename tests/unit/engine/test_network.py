"""What goes from a shell to processes on other machines."""

from pathlib import Path

from erniecore.engine.processes.network import free_port, sent_along


def test_settings_are_sent_along_and_secrets_stay():
    shell = {
        "ERNIE_TRAIN__LEARNING_RATE": "1e-4", "ERNIE_MODEL__TOKENIZER": "here", "ERNIE_API_KEY": "sk-1", "ERNIECORE_SECRET": "s",
        "ERNIE_HUB_TOKEN": "hf", "OMP_NUM_THREADS": "1", "HOME": "/root",
    }  # fmt: skip
    assert sent_along(shell, ("ERNIE", "OMP_")) == {
        "ERNIE_MODEL__TOKENIZER": "here",
        "ERNIE_TRAIN__LEARNING_RATE": "1e-4",
        "OMP_NUM_THREADS": "1",
    }


def test_a_free_port_is_none_that_outgoing_connections_are_given():
    path = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first, last = map(int, path.read_text().split()) if path.exists() else (32768, 60999)
    ports = {free_port() for _ in range(20)}
    assert len(ports) > 10  # processes that ask at the same time hardly get the same
    if first >= 30000:  # as Linux has it
        assert not any(first <= port <= last for port in ports)
    assert not any(10002 <= port <= 19999 for port in ports)  # a head of Ray refuses to start at a port of its workers
