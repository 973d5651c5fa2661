"""Every page in a real browser: no errors, nothing that axe finds serious, narrow, dark, Chinese, by keyboard alone: with Tab
everything is reached in the order of the page, shows that it has the focus, and lets it go again."""

import pytest
from browser_checks import until, violations

pytestmark = [pytest.mark.web, pytest.mark.slow]
PATHS = ["/runs", "/new", "/queue", "/compare", "/compare?run=crashed", "/runs/trash", "/run/crashed", "/run/crashed/log",
         "/run/crashed/settings", "/run/crashed/data", "/run/crashed/checkpoints", "/run/crashed/evaluations", "/data",
         "/data/lines?path=rows.jsonl", "/models", "/models/show?path=model", "/chat", "/chat?model=model",
         "/chat?model=model&model=model", "/evaluate", "/machine", "/plugins", "/run/nothing"]  # fmt: skip


#: marks what Tab has to reach with its number in the order of the page; of radio buttons of one name one is reached
MARK = """(() => {
  const all = 'a[href], button, input, select, textarea, summary, [tabindex]', groups = new Set();
  let number = 0;
  for (const e of document.querySelectorAll(all)) {
    const style = getComputedStyle(e), folded = e.closest('details:not([open])');
    if (e.disabled || e.type === 'hidden' || e.tabIndex < 0 || !e.getClientRects().length) continue;
    if (style.visibility === 'hidden') continue;
    if (folded && !(e.matches('summary') && e.parentElement === folded)) continue;
    if (e.type === 'radio') { if (groups.has(e.name)) continue; groups.add(e.name); }
    e.dataset.number = number++;
  }
  return number;
})()"""
#: of what has the focus: its number, and whether one sees that it has it
FOCUSED = """(() => {
  const e = document.activeElement;
  if (!e || e === document.body) return null;
  const shown = (e) => { const s = getComputedStyle(e); return s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2; };
  const small = e.getBoundingClientRect().width < 3, box = small ? e.closest('label') : e, place = box.getBoundingClientRect();
  const name = e.outerHTML.slice(0, 120);
  const number = e.type === 'radio' ? document.querySelector(`[name="${e.name}"][data-number]`).dataset.number : e.dataset.number;
  return [Number(number), shown(box), place.bottom > 0 && place.top < innerHeight, name];
})()"""


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


def walk(page, count):
    """What has the focus after each Tab, until the page lets it go."""
    seen = []
    for _ in range(count + 5):
        page.keyboard.press("Tab")
        now = page.evaluate(FOCUSED)
        if now is None:
            return seen
        seen.append(now)
    raise AssertionError(f"the focus does not leave the page: {seen[-3:]}")


@pytest.mark.parametrize("path", PATHS)
def test_everything_is_reached_with_tab(visit, server, path):
    page = visit()
    visit.expected.append("status of 400")
    page.goto(server.base + path)
    until(page, "!document.querySelector('#charts, #compare') || document.querySelector('.chart canvas')")
    until(page, "!document.getElementById('new') || document.getElementById('new').dataset.settled === 'true'")
    until(page, "!document.querySelector('[hx-trigger=load]') || !document.querySelector('.htmx-request')")
    page.wait_for_timeout(300)
    for _ in range(3):
        count = page.evaluate(MARK)
        seen = walk(page, count)
        if all(number == number for number, *_ in seen):
            break  # else something has come while it was walked, such as a plan
    reached = [number for number, *_ in seen]
    assert reached == list(range(count)), [s for s in seen if s[0] is None]
    assert not [name for _, shown, _, name in seen if not shown], "the focus is not seen"
    assert not [name for _, _, inside, name in seen[1:] if not inside], "what has the focus is not in the window"


def test_links_buttons_boxes_and_folds_work_by_keys(visit, server):
    page = visit("/runs")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # the first stop skips the navigation
    assert page.evaluate("document.activeElement.id") == "main"
    box = page.get_by_label("Choose crashed")
    box.focus()
    page.keyboard.press("Space")
    assert box.is_checked()
    page.get_by_role("button", name="Compare").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/compare?**run=crashed**")
    page.goto(server.base + "/chat?model=model")
    page.get_by_text("Parameters").focus()
    page.keyboard.press("Space")
    assert page.get_by_label("Temperature").is_visible()
    page.get_by_label("Reasoning").focus()
    page.keyboard.press("ArrowDown")
    assert page.get_by_label("Reasoning").input_value() == "on"
    page.get_by_role("button", name="Dark colors").focus()
    page.keyboard.press("Enter")
    until(page, "document.documentElement.dataset.theme === 'dark'")
