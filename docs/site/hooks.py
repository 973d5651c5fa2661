"""What mkdocs does not do by itself for `make site`: the navigation, and links that leave docs/.

Pages and files of the repository to which pages link become pages below ``repository/`` of the site, and so do those to which
these link: Markdown as it is, a folder as its README or a list of its files, code as a listing. Anchors are made as on
hosting services, for which the pages are written. mkdocs is imported only while it runs, so that the tests can ask for the
navigation and the links without it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
SECTIONS = {
    "Tutorials": "tutorials",
    "How-to guides": "how-to",
    "Reference": "reference",
    "Explanation": "explanation",
    "Decisions": "adr",
}
#: where the rest of the repository is in the site
REST = "repository"
_LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)#\s]+)")
_PICTURES = {".png", ".svg", ".webp"}
_LANGUAGES = {
    ".py": "python",
    ".yaml": "yaml",
    ".toml": "toml",
    ".json": "json",
    ".cpp": "cpp",
    ".h": "cpp",
    "": "makefile",
}


def nav(docs: Path = DOCS) -> list[Any]:
    """The start page, then a section per folder: its README, then pages in the order in which docs/README.md names them."""
    start = (docs / "README.md").read_text(encoding="utf-8")
    named = [target for _, target in _LINK.findall(start)]

    def order(page: str) -> tuple[bool, int, str]:
        return (not page.endswith("/README.md"), named.index(page) if page in named else len(named), page)

    def pages(folder: str) -> list[str]:
        return sorted((path.relative_to(docs).as_posix() for path in (docs / folder).rglob("*.md")), key=order)

    return ["README.md", *({title: pages(folder)} for title, folder in SECTIONS.items())]


def target(page: str, link: str) -> str | None:
    """What a link of a page leads to, both as paths in the repository; None if it stays in docs/ or leads nowhere.

    A folder with a README leads to that.
    """
    found = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    if found.startswith(("docs/", "../")) or not (ROOT / found).exists():
        return None
    return f"{found}/README.md" if (ROOT / found / "README.md").is_file() else found


def place(path: str) -> str:
    """Where a path of the repository is among the sources of the site."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    kept = path.endswith(".md") or Path(path).suffix in _PICTURES
    return f"{REST}/{path}" if kept else f"{REST}/{path}.md"


def rest() -> dict[str, str]:
    """Place -> path in the repository, for everything outside docs/ that the site needs."""
    waiting = [path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md")]
    found: dict[str, str] = {}
    while waiting:
        page = waiting.pop()
        for path in _targets(page):
            if place(path) not in found:
                found[place(path)] = path
                waiting += [path] if path.endswith(".md") else []
    return found


def rewritten(page: str, text: str) -> str:
    """A page's text with the links that leave its part of the site leading to places."""

    def replace(match: re.Match[str]) -> str:
        path = target(page, match[2])
        if path is None and not page.startswith("docs/"):
            inside = posixpath.normpath(posixpath.join(posixpath.dirname(page), match[2]))
            path = inside if inside.startswith("docs/") else None
            if path is not None and (ROOT / path).is_dir():
                path = f"{path}/README.md"
        if path is None:
            return match[0]
        return match[1] + posixpath.relpath(place(path), posixpath.dirname(place(page)) or ".")

    return _LINK.sub(replace, text)


def content(path: str) -> str:
    """The page for a file or folder outside docs/."""
    full = ROOT / path
    if full.is_dir():
        names = sorted(p.name + "/" * p.is_dir() for p in full.iterdir() if p.name != "__pycache__")
        return f"# {path}\n\n" + "".join(f"* `{name}`\n" for name in names)
    text = full.read_text(encoding="utf-8")
    if path.endswith(".md"):
        return rewritten(path, text)
    return f"# {path}\n\n`````{_LANGUAGES.get(full.suffix, 'text')}\n{text}\n`````\n"


def slug(text: str, separator: str = "-") -> str:
    """The anchor of a heading, as hosting services make it."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", separator)


def on_config(config: Any) -> Any:
    """mkdocs asks for its settings."""
    config.nav = nav()
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files: Any, config: Any) -> Any:
    """mkdocs asks for the files of the site."""
    from mkdocs.structure.files import File, InclusionLevel

    for source, path in rest().items():
        if Path(path).suffix in _PICTURES:
            files.append(File.generated(config, source, abs_src_path=str(ROOT / path)))
        else:
            files.append(File.generated(config, source, content=content(path), inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """mkdocs asks for the text of a page."""
    source = page.file.src_uri
    return markdown if source.startswith(f"{REST}/") else rewritten(f"docs/{source}", markdown)


def _targets(page: str) -> Iterable[str]:
    for _, link in _LINK.findall((ROOT / page).read_text(encoding="utf-8")):
        path = target(page, link)
        if path is not None:
            yield path
