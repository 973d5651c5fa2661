"""Every page in a real browser: no errors, nothing that axe finds serious, narrow, dark, Chinese, by keyboard alone."""

import pytest
from browser_checks import until, violations

pytestmark = [pytest.mark.web, pytest.mark.slow]
PATHS = ["/runs", "/new", "/queue", "/compare", "/compare?run=crashed", "/runs/trash", "/run/crashed",
         "/run/crashed/log",
         "/run/crashed/settings", "/run/crashed/data", "/run/crashed/checkpoints", "/models", "/models/show?path=model", "/chat",
         "/chat?model=model", "/evaluate", "/machine", "/plugins", "/run/nothing"]  # fmt: skip


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(visit, server, theme):
    page = visit(color_scheme=theme)
    visit.expected.append("status of 400")  # of the page that is not there
    found = {}
    for path in PATHS:
        page.goto(server.base + path)
        until(page, "!document.querySelector('#charts, #compare') || document.querySelector('.chart canvas')")
        if bad := violations(page):
            found[path] = bad
    assert not found, found
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 150) == (theme == "dark")


@pytest.mark.parametrize("width", [360, 3840])
def test_no_page_is_wider_than_its_window(visit, server, width):
    page = visit(viewport={"width": width, "height": 800})
    visit.expected.append("status of 400")
    for path in PATHS:
        page.goto(server.base + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path


def test_the_colors_that_were_chosen_stay(visit, server):
    page = visit(color_scheme="light")
    page.get_by_role("button", name="Dark colors").click()
    page.goto(server.base + "/run/crashed")
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"


def test_chinese_is_complete(visit, server):
    page = visit(locale="zh-CN")
    assert page.get_by_role("heading", name="运行").is_visible()
    for path in PATHS[:-1]:
        page.goto(server.base + path)
        until(page, "!document.querySelector('#charts, #compare') || document.querySelector('.chart canvas')")
        text = page.evaluate("document.querySelector('.side nav').innerText + document.querySelector('h1').innerText")
        assert any("\u4e00" <= c <= "\u9fff" for c in text), path
    page.goto(server.base + "/run/crashed")
    assert page.locator(".chart h3").first.inner_text() == "损失"
    page.get_by_role("button", name="English").click()
    page.get_by_role("link", name="Curves").wait_for()  # the form loads the page again


def test_everything_is_reached_with_the_keyboard(visit):
    page = visit()
    page.keyboard.press("/")
    page.keyboard.type("crash")
    until(page, "document.querySelectorAll('#rows tbody tr').length === 1")
    seen = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        name = page.evaluate(
            "document.activeElement.innerText || document.activeElement.getAttribute('aria-label') || ''"
        )
        seen.add(name)
        if name == "crashed":
            break
    assert "crashed" in seen
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.wait_for_url("**/run/crashed")
    page.locator("#main").focus()
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.innerText") == "Settings":
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/run/crashed/settings")


def test_a_deleted_run_comes_back_with_one_click(visit, server):
    page = visit()
    page.get_by_label("Choose crashed").check()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Undo").wait_for()
    assert not (server.home / "runs" / "crashed").exists()
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("link", name="crashed", exact=True).wait_for()
    assert (server.home / "runs" / "crashed" / "events.jsonl").is_file()
