"""The table of pages. A page is a module here with ``routes()``; it is imported when the application is made."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from starlette.routing import Route


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its module in this package, its address in the navigation (``""``: not in it), and its sign there."""

    name: str
    path: str = ""
    icon: str = ""


PAGES = (
    Page("runs", "/runs", "▤"),
    Page("new", "/new", "+"),
    Page("queue", "/queue", "≡"),
    Page("compare", "/compare", "≈"),
    Page("data", "/data", "▥"),
    Page("models", "/models", "▣"),
    Page("chat", "/chat", "✎"),
    Page("evaluate", "/evaluate", "◎"),
    Page("machine", "/machine", "⚙"),
    Page("plugins", "/plugins", "⬡"),
    Page("run"),
    Page("errors"),
    Page("session"),
)


def in_navigation() -> list[Page]:
    """Pages that the navigation shows, in order; its texts are ``nav.NAME``."""
    return [page for page in PAGES if page.path]


def all_routes() -> list[Route]:
    """The routes of all pages."""
    return [route for page in PAGES for route in import_module(f"{__name__}.{page.name}").routes()]
