"""The website of the documentation, without mkdocs: every page has a place in it, and every link of a page leads to one."""

import importlib.util
import os
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "site" / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_once_in_the_navigation(hooks):
    first, *sections = hooks.nav()
    pages = [first, *(page for section in sections for pages in section.values() for page in pages)]
    assert sorted(pages) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    assert all(pages for section in sections for pages in section.values())


def test_a_section_has_its_readme_first_then_the_order_of_the_start_page(hooks):
    sections = {title: pages for section in hooks.nav()[1:] for title, pages in section.items()}
    assert sections["Decisions"][:2] == ["adr/README.md", "adr/0001-stevedore-selects-pluggy-calls.md"]
    assert sections["Tutorials"][0] == "tutorials/first-fine-tune.md"
    assert sections["How-to guides"][0] == "how-to/install.md"


def test_links_of_every_page_lead_to_pages_of_the_site(hooks):
    rest = hooks.rest()
    inside = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*") if path.is_file()}
    sources = {f"docs/{page}": page for page in inside if page.endswith(".md")}
    sources |= {path: place for place, path in rest.items() if path.endswith(".md")}
    assert len(sources) > len(inside) / 2
    broken = []
    for path, place in sources.items():
        text = hooks.rewritten(path, (ROOT / path).read_text(encoding="utf-8"))
        for link in LINK.findall(text):
            found = os.path.normpath(os.path.join(os.path.dirname(place), link))
            if found not in rest and found not in inside:
                broken.append(f"{path}: {link}")
    assert not broken, broken
    assert all(
        hooks.content(path).strip() for path in rest.values() if Path(path).suffix not in {".png", ".svg", ".webp"}
    )


def test_code_and_folders_become_pages(hooks):
    assert (
        hooks.rewritten("docs/how-to/a.md", "[k](../../erniecore/kinds.py#L3)")
        == "[k](../repository/erniecore/kinds.py.md#L3)"
    )
    assert hooks.rewritten("docs/a.md", "[m](../plugins/methods)") == "[m](repository/plugins/methods/README.md)"
    assert (
        hooks.rewritten("plugins/methods/README.md", "[s](../../docs/how-to/serve.md)")
        == "[s](../../../how-to/serve.md)"
    )
    assert hooks.content("erniecore/kinds.py").startswith("# erniecore/kinds.py\n\n`````python\n")
    assert "* `README.md`\n" in hooks.content("plugins/methods")


def test_anchors_are_those_of_hosting_services(hooks):
    assert hooks.slug("Release & `make site`: what's new") == "release--make-site-whats-new"


def test_settings_are_strict_and_ask_no_other_server():
    settings = yaml.safe_load((DOCS / "site" / "mkdocs.yml").read_text())
    assert settings["theme"]["font"] is False
    checks = {key: value for part in settings["validation"].values() for key, value in part.items()}
    assert set(checks.values()) == {"warn"}
    assert (DOCS / "site" / settings["docs_dir"]).resolve() == DOCS
    (command,) = re.findall(r"mkdocs build .*", (ROOT / "Makefile").read_text())
    assert "--strict" in command
    assert "--quiet" not in command, "then warnings are not counted"
