"""What axe-core, which lies beside this file, finds on a page that a browser shows."""

import time
from pathlib import Path

AXE = Path(__file__).with_name("axe-core") / "axe.min.js"


def violations(page):
    """(rule, elements) of what is serious or worse."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations)")
    return [
        (v["id"], [n["html"][:160] for n in v["nodes"]][:4]) for v in found if v["impact"] in ("serious", "critical")
    ]


def until(page, expression, patience=180):
    """Wait until a JavaScript expression is true. Playwright's own waits evaluate strings, which the page forbids."""
    from playwright.sync_api import Error

    end = time.monotonic() + patience
    while time.monotonic() < end:
        try:
            if found := page.evaluate(expression):
                return found
        except Error as error:
            # a page that is being replaced has neither scripts nor elements
            if not any(
                part in str(error) for part in ("context was destroyed", "is not defined", "properties of null")
            ):
                raise
        page.wait_for_timeout(50)
    raise AssertionError(f"not true within {patience} s: {expression}\n{page.locator('body').inner_text()}")


def chats_ready(page, models=1):
    """Wait until so many models of the chat page can answer, and until its script has run: before that, ``chat`` is the element
    of this id, and what a test sets on it is lost."""
    until(page, f"document.querySelectorAll('.pane[data-state=ready]').length === {models} && !!window.chat?.panes")
