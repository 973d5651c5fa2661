"""Whether a server answers, as its clients see it: ``/health``, and a completion of one token. Standard library only."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from erniecore.api import EnvironmentFault


@dataclass(frozen=True)
class Address:
    """Where a server is, and the key that it asks for; empty: none."""

    host: str
    port: int
    key: str = ""

    @property
    def url(self) -> str:
        """Without a path. A server on all addresses is asked on loopback."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def is_healthy(address: Address, seconds: float = 5.0) -> bool:
    """Whether ``GET /health`` answers 200 within so many seconds."""
    try:
        return _ask(address, "/health", None, seconds)[0] == 200
    except OSError:
        return False


def probe(address: Address, seconds: float = 60.0) -> str:
    """Name of the model that the server has, once it has completed a prompt with it. A server that is too busy (429) is good.

    Raises:
        EnvironmentFault: it answers something else.
    """
    status, found = _answer(address, "/v1/models", None, seconds)
    try:
        name = str(found["data"][0]["id"]) if status == 200 else ""
    except (KeyError, IndexError, TypeError):
        name = ""
    if not name:
        raise _bad("/v1/models", status, found, "a list with the model")
    asked = {"model": name, "prompt": "1 + 1 =", "max_tokens": 1, "temperature": 0}
    status, found = _answer(address, "/v1/completions", asked, seconds)
    if status == 429:
        return name
    if status != 200 or not isinstance(found, dict) or not found.get("choices"):
        raise _bad("/v1/completions", status, found, "a completion of one token")
    return name


def prompt_tokens(address: Address, model: str, asked: Mapping[str, Any], seconds: float = 60.0) -> list[int]:
    """Token ids that the server gives the model for a conversation (``return_token_ids``), with one new token.

    Raises:
        EnvironmentFault: it is busy, refuses the conversation, or does not say.
    """
    body = {**asked, "model": model, "max_tokens": 1, "temperature": 0, "return_token_ids": True}
    status, found = _answer(address, "/v1/chat/completions", body, seconds)
    try:
        choice = found["choices"][0]
        ids = choice["message"].get("prompt_token_ids", choice.get("prompt_token_ids")) if status == 200 else None
    except (KeyError, IndexError, TypeError, AttributeError):
        ids = None
    if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
        raise _bad("/v1/chat/completions", status, found, "an answer with prompt_token_ids")
    return ids


def is_free(host: str, port: int) -> bool:
    """Whether a server can listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind((host, port))
        except OSError:
            return False
    return True


def _answer(address: Address, path: str, body: Any, seconds: float) -> tuple[int, Any]:
    try:
        status, text = _ask(address, path, body, seconds)
    except OSError as error:
        raise EnvironmentFault(
            "the server is healthy and does not answer", where=address.url + path, found=str(error)
        ) from error
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text.decode(errors="replace")


def _ask(address: Address, path: str, body: Any, seconds: float) -> tuple[int, bytes]:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {address.key}"} if address.key else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address.url + path, data, headers)
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({})
    )  # a server of this machine, whatever the proxy
    try:
        with opener.open(request, timeout=seconds) as answer:
            return answer.status, answer.read(1 << 20)
    except urllib.error.HTTPError as error:
        return error.code, error.read(1 << 20)


def _bad(path: str, status: int, found: Any, expected: str) -> EnvironmentFault:
    said = json.dumps(found)[:300] if not isinstance(found, str) else found[:300]
    return EnvironmentFault(
        "the server does not serve the model", where=path, found=f"{status}: {said}", expected=expected
    )
