"""A site's connection to its coordinator, see ``pinned_client.py``."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import quote, urlencode

from erniecore_wan.arrays import Vector
from erniecore_wan.masks import Roster, roster_from
from erniecore_wan.pinned_client import PinnedClient
from erniecore_wan.pinned_server import MAX_JSON
from erniecore_wan.rounds import Result, Terms, result_from


class CoordinatorClient(PinnedClient):
    """One site. Bytes are those of updates and anchors."""

    def join(self, terms: Terms) -> dict[str, Any]:
        """Take part; what ``Coordinator.join`` returns. Measures the round trip."""
        found: dict[str, Any] = self.json("POST", "/join", json.dumps({"terms": terms.values}).encode())
        with self.readable("/join"):
            _check_joined(found)
        self.most = 16 * max(terms.sizes) + MAX_JSON
        started = time.perf_counter()
        self.json("GET", "/ping")
        self.delay = time.perf_counter() - started
        return found

    def leave(self) -> None:
        """This site is done."""
        self.json("POST", "/leave")

    def status(self) -> dict[str, Any]:
        """Round, sites, bytes and lag, see ``Coordinator.status``."""
        found: dict[str, Any] = self.json("GET", "/status")
        return found

    def put_anchor(self, vectors: list[Vector]) -> None:
        """The weights that the run starts from."""
        self.upload("/anchor", b"".join(vector.astype("<f4").tobytes() for vector in vectors))

    def submit(self, round_: int, data: bytes) -> str:
        """An update; ``accepted`` or ``known``. Raises ``PayloadRefused``."""
        return str(self.upload(f"/rounds/{round_}", data)["accepted"])

    def result(self, round_: int, wait: float = 20.0, attempt: int = 0) -> Result | None:
        """A round's result; ``None``: it is still open after ``wait`` seconds, or its ``attempt`` is repeated."""
        found = self.json("GET", f"/rounds/{round_}?{urlencode({'wait': wait, 'attempt': attempt})}")
        with self.readable("/rounds"):
            return None if found is None else result_from(found)

    def roster(self, round_: int, samples: float) -> Roster | None:
        """Who takes part in a masked round; ``None``: not known yet. Raises ``PayloadRefused``: ``late``, ``alone``."""
        found = self.json("GET", f"/rosters/{round_}?{urlencode({'samples': samples})}")
        with self.readable("/rosters"):
            return None if found is None else roster_from(found)

    def sum_of(self, round_: int) -> bytes:
        """The sum of the masked updates of a closed round."""
        return self.download(f"/sums/{round_}")

    def update_of(self, round_: int, name: str) -> bytes:
        """Another site's update of a closed round."""
        return self.download(f"/rounds/{round_}/{quote(name, safe='')}")

    def anchor_file(self, name: str) -> bytes:
        """A file with a fragment's anchor."""
        return self.download(f"/files/{quote(name, safe='')}")


def _check_joined(found: Any) -> None:
    """Raises ``ValueError``, ``TypeError`` or ``LookupError`` unless it is what ``Coordinator.join`` returns."""
    if not 0 <= int(found["round"]) < 1 << 31 or not isinstance(found["first"], bool):
        raise ValueError("no round, or no word on who is first")
    for anchor in found["anchors"]:
        if not all(isinstance(anchor[key], str) for key in ("file", "digest")):
            raise ValueError("an anchor without a file")
