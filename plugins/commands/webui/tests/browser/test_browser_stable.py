"""Nothing moves while numbers arrive: layout shifts as Chromium measures them (https://web.dev/articles/cls)."""

import json
import os
import signal

import pytest
from browser_checks import chats_ready, until

pytestmark = [pytest.mark.web, pytest.mark.slow]
#: what is asked of a good page is 0.1
MOST = 0.01
SHIFTS = """new Promise((done) => {
  const name = (node) => (node?.nodeType === 1 ? `${node.nodeName}#${node.id}.${node.className}` : node?.nodeName);
  const told = (e) => [e.value, e.startTime, ...e.sources.map((source) => name(source.node))];
  new PerformanceObserver((list) => done(list.getEntries().filter((e) => !e.hadRecentInput).map(told)))
    .observe({type: "layout-shift", buffered: true});
  setTimeout(() => done([]), 500);  // there was none
})"""
PUSH = "document.getElementById('main').prepend(Object.assign(document.createElement('pre'), {textContent: '1\\n2\\n3\\n4'}))"
COLUMNS = "[...document.querySelectorAll('#rows th')].map((th) => Math.round(th.getBoundingClientRect().x))"
ROW = "[...document.querySelectorAll('#rows tr')].find((tr) => tr.textContent.includes('moving'))"


def shifted(page):
    """The sum of all shifts since the page was opened, and what moved."""
    found = page.evaluate(SHIFTS)
    return sum(one[0] for one in found), found


@pytest.fixture(scope="module")
def live(server):
    """A run that goes on while pages look at it."""
    process = server.train("moving", "train.max_steps=100000", "eval.every=40", "checkpoint.every=200")
    while not (server.home / "runs/moving/events.jsonl").is_file():
        assert process.poll() is None
    yield "moving"
    process.terminate()
    process.wait()


def test_shifts_are_noticed(visit):
    page = visit("/machine")
    page.evaluate(PUSH)
    page.wait_for_timeout(200)
    assert shifted(page)[0] > MOST


@pytest.mark.parametrize("width", [1360, 390])
def test_a_run_that_is_watched_does_not_move(visit, live, width):
    page = visit(f"/run/{live}", viewport={"width": width, "height": 860})
    until(page, "window.watched && watched.points && watched.points.evals.loss")
    seen = page.evaluate("watched.points.metrics.loss.x.at(-1)")
    until(page, f"watched.points.metrics.loss.x.at(-1) > {seen} + 60")
    total, moved = shifted(page)
    assert total < MOST, moved


def test_the_list_of_runs_does_not_move(visit, live):
    page = visit("/runs")
    steps = f"{ROW}.querySelector('.steps').textContent"
    until(page, f"!!({ROW})")
    before = None
    for _ in range(4):
        shown = page.evaluate(steps)
        until(page, f"{steps} !== {json.dumps(shown)}")
        before = before or page.evaluate(COLUMNS)  # the list with which the page came may lack runs that began just now
        assert page.evaluate(COLUMNS) == before
    total, moved = shifted(page)
    assert total < MOST, moved


def test_answers_that_stream_do_not_move_the_page(visit, server):
    page = visit("/chat?model=model&model=model")
    try:
        page.get_by_role("button", name="Start").first.click()
        chats_ready(page, 2)
        page.goto(server.base + "/chat?model=model&model=model")
        chats_ready(page, 2)
        page.evaluate("chat.parameters = () => ({max_tokens: 60, temperature: 1, ignore_eos: true})")
        for _ in range(2):
            page.get_by_label("Message").fill("tell me")
            page.get_by_label("Message").press("Enter")
            page.wait_for_timeout(700)  # what is shown within half a second of a key is not counted
            until(page, "document.getElementById('chat').dataset.busy === 'false'")
            page.evaluate("chat.panes.forEach((pane) => { pane.messages = []; })")  # room in the context
        total, moved = shifted(page)
        assert total < MOST, moved
    finally:
        for file in (server.home / "runs/.web/tasks").glob("*/started.json"):
            if not (file.parent / "exit.json").exists() and "chat" in (file.parent / "task.json").read_text():
                os.kill(json.loads(file.read_text())["child"], signal.SIGTERM)
