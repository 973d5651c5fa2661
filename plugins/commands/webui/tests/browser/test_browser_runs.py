"""Runs that a browser watches: neither it nor the server is needed, and stopping from the page costs no bit."""

import json
import time
from pathlib import Path

import pytest
from browser_checks import chats_ready, until

pytestmark = [pytest.mark.web, pytest.mark.slow]
STEPS = "watched.points && watched.points.metrics.loss ? watched.points.metrics.loss.x : []"
WHOLE_CURVE = f"(() => {{ const x = {STEPS}; return x.every((s, i) => s === i + 1) ? x.length : 0; }})()"


@pytest.fixture(scope="module")
def whole(server):
    """A run that nobody stops, started in a terminal."""
    process = server.train("whole")
    yield server.home / "runs" / "whole"
    process.kill()
    process.wait()


def events(run, kind):
    lines = (run / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def test_a_run_needs_neither_the_page_nor_the_server(visit, server, whole, image):
    while not (whole / "events.jsonl").is_file():
        time.sleep(0.1)
    first, second = visit("/run/whole"), visit("/run/whole")
    visit.expected += ["ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "ERR_EMPTY"]
    for page in (first, second):
        until(page, f"{WHOLE_CURVE} > 20")
        assert page.locator(".badge").first.inner_text() == "running"
    image(first, "run")
    first.close()  # a tab is closed
    server.kill()  # the server is killed
    before = second.evaluate(WHOLE_CURVE)
    server.start()
    until(second, f"{WHOLE_CURVE} > {before} + 20")  # the tab that was left open goes on by itself
    again = visit("/run/whole")
    until(again, f"{WHOLE_CURVE} > {before}")
    assert len(events(whole, "run_start")) == 1
    again.wait_for_selector(".badge.finished")
    until(again, f"{WHOLE_CURVE} === 600")
    until(second, f"{WHOLE_CURVE} === 600")
    assert again.evaluate("watched.points.metrics.loss.y") == [e["loss"] for e in events(whole, "step")]
    assert again.evaluate("watched.points.evals.loss.x") == [e["step"] for e in events(whole, "eval")]


def test_a_run_stopped_and_resumed_on_the_page_has_the_same_bits(visit, server, whole):
    process = server.train("stopped")
    page = visit()
    page.get_by_role("link", name="stopped").click()
    until(page, f"{WHOLE_CURVE} > 10")
    page.get_by_role("button", name="Stop", exact=True).click()
    page.wait_for_selector(".badge.stopped")
    assert process.wait() == 75
    run = server.home / "runs" / "stopped"
    assert 10 < events(run, "step")[-1]["step"] < 600
    page.get_by_role("button", name="Resume").click()
    page.wait_for_selector(".badge.running")
    page.wait_for_selector(".badge.finished")
    assert (run / "model/model.safetensors").read_bytes() == (whole / "model/model.safetensors").read_bytes()
    losses = {event["step"]: event["loss"] for event in events(run, "step")}
    assert losses == {event["step"]: event["loss"] for event in events(whole, "step")}
    commands = [
        json.loads(line)["command"] for line in (server.home / "runs/.web/audit.jsonl").read_text().splitlines()
    ]
    assert "ernie runs stop runs/stopped" in commands
    assert "ernie run runs/stopped/resolved.yaml --out runs/stopped" in commands
    page.goto(server.base + "/run/stopped/checkpoints")
    page.get_by_role("button", name="Verify").first.click()
    page.wait_for_selector("#notices .notice.ok")
    page.get_by_role("button", name="Export").first.click()
    page.wait_for_selector("#tasks tr:has-text('export stopped') .badge.finished")
    assert list((run / "exported").glob("step-*/config.json"))


def test_two_runs_are_compared(visit, server, whole, image):
    page = visit("/compare?run=whole&run=crashed&run=stopped")
    page.wait_for_selector('.chart[data-metric="loss"] canvas')
    for axis, last in (("Tokens", "tokens"), ("Time (s)", "seconds"), ("Step", "x")):
        page.get_by_role("radio", name=axis, exact=True).check()
        until(page, f"document.querySelector('#compare').dataset.axis === '{last}'")
        columns = page.evaluate("compared.charts.get('loss').data")
        assert len(columns) == 4
        expected = page.evaluate(f"Math.max(...compared.found.flatMap((curves) => curves.get('loss').{last}))")
        assert columns[0][-1] == expected
    assert columns[0] == list(range(1, 601))
    # evaluations of the two runs that had any
    for axis, last in (("Tokens", "tokens"), ("Step", "x")):
        page.get_by_role("radio", name=axis, exact=True).check()
        until(page, f"document.querySelector('#compare').dataset.axis === '{last}'")
        columns = page.evaluate("compared.charts.get('eval').data")
        evaluated = events(whole, "eval")
        assert columns[1] == columns[3] == [event["loss"] for event in evaluated]
        assert not any(columns[2])
    assert columns[0] == [event["step"] for event in evaluated]
    page.mouse.move(0, 0)
    image(page, "compare")


def test_pictures_of_the_other_pages(visit, server, whole, image):
    page = visit(color_scheme="dark")
    page.wait_for_selector("#rows tbody tr")
    image(page, "runs-dark")
    page.goto(server.base + "/run/whole/settings")
    assert page.get_by_text("train.learning_rate").is_visible()
    page.goto(server.base + "/queue")
    page.wait_for_selector("#tasks tr:has-text('export stopped') .badge.finished")
    image(page, "queue")
    page = visit("/machine")
    page.wait_for_selector("td:has-text('processor')")
    image(page, "machine")
    page.goto(server.base + "/plugins")
    page.get_by_text("editable, from a clone").first.wait_for()
    image(page, "plugins")
    page.goto(server.base + "/models")
    page.get_by_role("link", name="runs/whole/model", exact=True).wait_for()
    image(page, "models")


def test_the_report_is_shown_as_it_is_sent(visit, server, whole):
    page = visit("/run/whole")
    page.get_by_role("button", name="Report").click()  # its settings asked for none
    page.wait_for_url("**/run/whole/report.html")
    assert page.get_by_text("rows kept").is_visible()
    assert page.locator("svg").count() > 3
    assert page.evaluate("getComputedStyle(document.querySelector('svg')).display") != "inline"  # its styles apply
    assert not page.evaluate("document.scripts.length")
    page.goto(server.base + "/run/whole")
    with page.expect_download() as sent:
        page.get_by_role("link", name="Download the report").click()
    assert sent.value.suggested_filename == "whole-report.html"
    assert Path(sent.value.path()).read_bytes() == (whole / "report.html").read_bytes()


def test_what_was_trained_talks_beside_its_base(visit, server, whole, image):
    page = visit("/chat?model=runs/whole/model&model=model")
    for started in (1, 2):
        page.get_by_role("button", name="Start").first.click()
        until(page, f"document.querySelectorAll('.pane[data-state=none]').length === {2 - started}")
    chats_ready(page, 2)
    page.evaluate("chat.parameters = () => ({temperature: 0, max_tokens: 16})")
    row = json.loads((server.home / "rows.jsonl").read_text().splitlines()[1])
    page.get_by_label("Message").fill(row["messages"][0]["content"])
    page.get_by_label("Message").press("Enter")
    until(page, "chat.panes.every((pane) => pane.messages.length === 2)")
    page.mouse.move(0, 0)
    image(page, "chat")
    learned, base = page.locator(".said.assistant .text").all_inner_texts()
    assert row["messages"][1]["content"].startswith(learned.strip()[:5])
    assert learned != base
    for left in (1, 0):
        page.get_by_role("button", name="Stop").first.click()
        until(page, f"document.querySelectorAll('.pane[data-state=ready]').length === {left}")
    until(page, "document.querySelectorAll('.pane[data-state=none]').length === 2")
