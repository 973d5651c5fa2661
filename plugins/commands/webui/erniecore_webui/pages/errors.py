"""The reference of error codes, as `ernie` and its documentation have it: without the network."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from erniecore.api import ErnieError
from erniecore.api.command import CODES
from erniecore.api.rows import codes
from erniecore_webui.rendering import page


@dataclass(frozen=True, slots=True)
class Code:
    """An error code, what it means, and with what commands exit; None: as its class, or it is one of rows."""

    name: str
    meaning: str
    exit: int | None = None


def all_codes() -> dict[str, Code]:
    """Every code by its name, in order."""
    found = {code.name: code for code in (*_rows(codes.MEANINGS), *_rows(CODES), *_classes(ErnieError))}
    return dict(sorted(found.items()))


def _rows(meanings: dict[str, str]) -> Iterator[Code]:
    return (Code(name, meaning) for name, meaning in meanings.items() if name.startswith("ERN-"))


def _classes(cls: type[ErnieError]) -> Iterator[Code]:
    for inner in cls.__subclasses__():
        yield from _classes(inner)
    if "code" in vars(cls):
        yield Code(cls.code, (inspect.getdoc(cls) or "").partition("\n\n")[0], int(cls.exit_code))


def show(request: Request) -> Response:
    """All codes, or one of them."""
    known, name = all_codes(), request.path_params.get("code", "")
    if name and name not in known:
        raise HTTPException(404)
    return page(request, "errors.html", current="errors", name=name, codes=[known[name]] if name else known.values())


def routes() -> list[Route]:
    """For the table of pages: GET shows."""
    return [Route("/errors", show), Route("/errors/{code}", show)]
