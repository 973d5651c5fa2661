"""The table of pages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its module in ``pages``, its address in the navigation (``""``: not in it), and its sign there."""

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
