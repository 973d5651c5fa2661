"""A server with OpenAI's interface, as clients ask it: one address, one key, JSON both ways. Standard library only.

No redirect is followed, and a key goes to loopback addresses and over TLS alone.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import SplitResult, urlsplit

from erniecore_system.addresses import is_loopback

from erniecore.api import EnvironmentFault, UsageError

#: most bytes of an answer
_LARGEST = 1 << 26


def server_address(url: str, key: str = "", *, where: str = "--url") -> SplitResult:
    """The parts of an address, ``http`` where it names no scheme.

    Args:
        url: with or without ``/v1``. key: that will be sent there. where: what an error calls the address.

    Raises:
        UsageError: it is none, or others could read the key.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError("no address of a server", where=where, found=url, expected="http://127.0.0.1:8000/v1")
    if key and parts.scheme == "http" and not is_loopback(parts.hostname):
        raise UsageError(
            "the API key would go over the network as plain text", where=where, found=url,
            fix="use https, or an SSH tunnel and its loopback address",
        )  # fmt: skip
    return parts


class Client:
    """Asks one server; see ``server_address`` for the arguments and errors.

    Attributes:
        url: without ``/v1`` and without a slash at its end.
    """

    def __init__(self, url: str, key: str = "", *, where: str = "--url", seconds: float = 600.0) -> None:
        parts = server_address(url, key, where=where)
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
        self._seconds = seconds
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        # a server of this machine is never behind the proxy
        proxies = [urllib.request.ProxyHandler({})] if is_loopback(parts.hostname or "") else []
        self._opener = urllib.request.build_opener(_NoRedirect(), *proxies)

    def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON (text where it is none) of an answer; without a body a GET. Bytes are sent as they are.

        Raises:
            EnvironmentFault: nobody answers.
        """
        try:
            with self._open(path, body) as answer:
                return answer.status, _json(answer.read(_LARGEST))
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _json(error.read(_LARGEST))
        except (OSError, ValueError) as error:
            raise self._unreachable(path, error) from error

    def chunks(self, path: str, body: Any) -> Iterator[Any]:
        """The JSON objects of a stream of server-sent events, up to ``[DONE]``.

        Raises:
            EnvironmentFault: nobody answers, the status is not 200, or the end is missing.
        """
        try:
            with self._open(path, body) as answer:
                for line in answer:
                    data = line.removeprefix(b"data:").strip()
                    if data == b"[DONE]":
                        return
                    if line.startswith(b"data:") and data:
                        yield _json(data)
        except (OSError, ValueError) as error:
            raise self._unreachable(path, error) from error
        raise EnvironmentFault("the server has stopped in the middle of a stream", where=self.url + path)

    def models(self) -> list[str]:
        """Names of the models, the first one first. Raises ``EnvironmentFault`` where the server tells none."""
        status, found = self.ask("/v1/models")
        try:
            names = [str(entry["id"]) for entry in found["data"]] if status == 200 else []
        except (KeyError, TypeError):
            names = []
        if not names:
            raise EnvironmentFault(
                "the server names no model", where=f"{self.url}/v1/models", found=f"{status}: {str(found)[:200]}",
                fix="name the key of its API, if it asks for one" if status == 401 else "",
            )  # fmt: skip
        return names

    def _open(self, path: str, body: Any) -> Any:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        return self._opener.open(urllib.request.Request(self.url + path, data, self._headers), timeout=self._seconds)

    def _unreachable(self, path: str, error: Exception) -> EnvironmentFault:
        found = f"{type(error).__name__}: {error}"
        return EnvironmentFault("the server is not reachable", where=self.url + path, found=found)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An answer that points elsewhere is an answer: a key goes nowhere else."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.decode(errors="replace")
