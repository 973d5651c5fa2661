"""The transport over a link of the kernel: a network namespace whose rate `tc` limits. Skipped where the machine allows none."""

import json
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from erniecore_wan.links import LinkQuality
from erniecore_wan.namespaces import NamespaceLink
from erniecore_wan.sites import Life
from wan_sites import Service, make_keyring, terms

from erniecore.api import EnvironmentFault

RATE, SIZE = 1_000_000, 500_000  # bytes per second, elements

#: a site in the namespace: it sends the first weights, fetches them, and says what it measured
SITE = """
import json, sys, time
from pathlib import Path
import numpy as np
from erniecore_wan.client import CoordinatorClient
from erniecore_wan.rounds import Terms
address, keys, values, size = sys.argv[1:]
told = []
site = CoordinatorClient(address, Path(keys, "east.key"), Path(keys, "coordinator.pem"), 120.0, told.append)
joined = site.join(Terms(json.loads(values)))
print("joined", flush=True)
started = time.monotonic()
site.put_anchor([np.arange(int(size), dtype=np.float32)])
up = time.monotonic() - started
name = site.join(Terms(json.loads(values)))["anchors"][0]["file"]
started = time.monotonic()
data = site.anchor_file(name)
print(json.dumps({"up": up, "down": time.monotonic() - started, "bytes": len(data), "delay": site.delay, "told": told}))
"""


@contextmanager
def link(quality):
    """The link; skips the test where there can be none."""
    made = NamespaceLink(quality)
    try:
        made.__enter__()
    except EnvironmentFault as error:
        pytest.skip(str(error))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def measured(tmp_path):
    """``measured(link, meanwhile)``: what a site behind the link measured; ``meanwhile(service)`` runs once it has joined."""

    def run(made, meanwhile=lambda service: None):
        keyring = make_keyring(tmp_path / "keys", ("coordinator", "east"))
        service = Service(tmp_path / "rounds", Life(start=1), keyring, ("east",), host=made.here)
        agreed = json.dumps(dict(terms(sizes=[SIZE]).values))
        words = [sys.executable, "-c", SITE, f"{made.here}:{service.port}", str(keyring), agreed, str(SIZE)]
        site = subprocess.Popen(made.command(*words), stdout=subprocess.PIPE, text=True)
        assert site.stdout.readline() == "joined\n"
        meanwhile(service)
        found = json.loads(site.communicate()[0])
        anchor = service.coordinator._anchors[0][0]
        service.stop()
        np.testing.assert_array_equal(anchor, np.arange(SIZE, dtype=np.float32))
        assert found["bytes"] >= 4 * SIZE
        return found

    return run


def test_what_crosses_the_link_takes_the_time_that_its_rate_allows(measured):
    with link(LinkQuality(rate=RATE)) as made:
        found = measured(made)
    least = (4 * SIZE - (16 << 10)) / RATE  # a token bucket lets its burst pass at once
    assert found["up"] >= least
    assert found["down"] >= least
    assert found["told"] == []


def test_a_transfer_goes_on_behind_a_cut_of_the_link(measured):
    with link(LinkQuality(rate=RATE)) as made:

        def cut(service):
            while not any(service.server.uploads.values()):
                time.sleep(0.01)
            made.up(connected=False)
            waker = threading.Timer(1.0, lambda: made.up(connected=True))
            waker.start()
            waker.join()

        found = measured(made, cut)
    assert found["up"] >= 1.0 + (4 * SIZE - (1 << 20) - (16 << 10)) / RATE / 2


def test_delay_and_loss_of_the_kernel(measured):
    with link(LinkQuality(rate=RATE, delay=0.02, loss=0.01)) as made:
        found = measured(made)
    assert found["delay"] >= 0.04  # there and back


def test_a_link_that_cannot_be_is_named_and_leaves_nothing_behind():
    made = NamespaceLink(LinkQuality(rate=RATE, loss=20.0))  # 2000 %
    with pytest.raises(EnvironmentFault, match=r"this machine allows no such link|needs iproute2"):
        made.__enter__()
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    assert made._name not in left
