"""A page is a module here with ``routes()``; ``navigation`` has the table of them."""

from __future__ import annotations

from importlib import import_module

from starlette.routing import Route

from erniecore_webui.navigation import PAGES


def all_routes() -> list[Route]:
    """The routes of all pages, whose modules are imported here."""
    return [route for page in PAGES for route in import_module(f"{__name__}.{page.name}").routes()]
