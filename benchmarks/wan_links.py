"""What the transport of wide-area training makes of a link: an anchor up and down between a site and a coordinator, over the link
emulator (token buckets in this process) and over a link of the kernel (network namespace and `tc`, where the machine allows it).

    python -m benchmarks.wan_links [--rates 10 100] [--megabytes 8] [--delay 0.05]

Prints for each link the rate that was set and the rates that were measured, in Mbit/s.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from erniecore_wan.coordinator import Coordinator
from erniecore_wan.keys import make_keys
from erniecore_wan.links import LinkEmulator, LinkQuality
from erniecore_wan.namespaces import NamespaceLink
from erniecore_wan.outer import Outer
from erniecore_wan.server import CoordinatorServer
from erniecore_wan.sites import Life
from erniecore_wan.store import Store

from erniecore.api import EnvironmentFault

#: the site's side, in a process of its own: it may be in another namespace
_SITE = """
import json, sys
from pathlib import Path
import numpy as np
from erniecore_wan.client import CoordinatorClient
from erniecore_wan.rounds import Terms
address, keys, values = sys.argv[1:]
terms = Terms(json.loads(values))
site = CoordinatorClient(address, Path(keys, "east.key"), Path(keys, "coordinator.pem"), 60.0)
site.join(terms)
site.put_anchor([np.zeros(terms.sizes[0], np.float32)])
up = site.up
site.anchor_file(site.join(terms)["anchors"][0]["file"])
print(json.dumps([up, site.down, site.delay]))
"""


@contextmanager
def _service(home: Path, host: str) -> Iterator[int]:
    """The port of a coordinator."""
    keys = home / "keys"
    for name in ("coordinator", "east"):
        make_keys(name, keys)
    coordinator = Coordinator(Store(home / "rounds", 4), Life())
    server = CoordinatorServer((host, 0), coordinator, keys / "coordinator.key", [keys / "east.pem"])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def _measured(home: Path, front: list[str], address: str, size: int) -> tuple[float, float, float]:
    """Rates up and down in bytes per second, and the round trip in seconds."""
    values = {
        "model": "", "parameters": "", "sizes": [size], "outer": asdict(Outer()), "clip": 0.0, "adaptive": False,
        "overhead": 0.1, "cap": 100, "form": "float32", "k": 64, "chunk": 4096, "secure": False,
    }  # fmt: skip
    words = [*front, sys.executable, "-c", _SITE, address, str(home / "keys"), json.dumps(values)]
    up, down, delay = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    return up, down, delay


def emulated(quality: LinkQuality, size: int) -> tuple[float, float, float]:
    """Over the link emulator."""
    with tempfile.TemporaryDirectory() as scratch, _service(Path(scratch), "127.0.0.1") as port:
        link = LinkEmulator(("127.0.0.1", port), quality)
        try:
            return _measured(Path(scratch), [], f"127.0.0.1:{link.port}", size)
        finally:
            link.close()


def by_the_kernel(quality: LinkQuality, size: int) -> tuple[float, float, float]:
    """Over a namespace. Raises ``EnvironmentFault`` where there can be none."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        NamespaceLink(quality) as link,
        _service(Path(scratch), link.here) as port,
    ):
        return _measured(Path(scratch), link.command(), f"{link.here}:{port}", size)


def main() -> None:
    """Print a row for each rate and kind of link."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--rates", type=float, nargs="+", default=[10.0, 100.0], help="Mbit/s")
    parser.add_argument("--megabytes", type=float, default=8.0)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds one way; the kernel needs netem for it")
    given = parser.parse_args()
    size = int(given.megabytes * 1e6) // 4
    print("link       set      up       down     Mbit/s; round trip in ms")
    for rate in given.rates:
        quality = LinkQuality(rate=rate * 1e6 / 8, delay=given.delay)
        for name, run in (("emulated", emulated), ("kernel", by_the_kernel)):
            try:
                up, down, delay = run(quality, size)
            except EnvironmentFault as error:
                print(f"{name:<10} not on this machine: {error}")
                continue
            print(f"{name:<10} {rate:<8g} {8e-6 * up:<8.3g} {8e-6 * down:<8.3g} {1e3 * delay:.3g}")


if __name__ == "__main__":
    main()
