"""Data in a real browser; and docs/how-to/first-model-in-a-browser.md step by step: upload, look, train, talk."""

import json
import os
import re
import signal

import pytest
from browser_checks import chats_ready, until, violations

pytestmark = [pytest.mark.web, pytest.mark.slow]
SETTLED = "document.getElementById('new').dataset.settled === 'true'"


@pytest.fixture
def no_model_stays(server):
    yield
    for file in (server.home / "runs/.web/tasks").glob("*/started.json"):
        if not (file.parent / "exit.json").exists():
            os.kill(json.loads(file.read_text())["child"], signal.SIGTERM)


def test_the_first_model_without_a_terminal(visit, server, image, tmp_path, no_model_stays):
    rows = [json.loads(line) for line in (server.home / "rows.jsonl").read_text().splitlines()]
    rows.insert(2, {"messages": [{"role": "user", "content": "nobody answers this one"}]})
    mine = tmp_path / "mine.jsonl"
    mine.write_text("".join(json.dumps(row) + "\n" for row in rows))

    page = visit("/data")
    assert not violations(page)
    page.get_by_label("Upload a file of rows").set_input_files(mine)
    page.get_by_role("button", name="Upload", exact=True).click()
    page.wait_for_url("**/data/lines?**")
    assert (server.home / "runs/data/mine.jsonl").read_bytes() == mine.read_bytes()
    page.get_by_text("the last message must be of assistant").wait_for()
    page.wait_for_selector(".sample")
    assert page.locator(".sample mark.learned").first.inner_text().endswith("</s>")
    assert not violations(page)
    image(page, "data")
    page.get_by_role("link", name="runs/data/mine.jsonl:3").click()
    page.wait_for_url("**line=3")
    assert page.locator(".raw li code").first.inner_text() == json.dumps(rows[2])
    page.get_by_role("link", name="Train on it").click()

    until(page, SETTLED)
    text = page.get_by_role("textbox", name="Settings as YAML")
    assert "train: [runs/data/mine.jsonl]" in text.input_value()
    training = "train: {max_steps: 220, batch_size: 10, learning_rate: 0.004}"
    written = text.input_value().replace("train: {epochs: 1, batch_size: 4}", training)
    # offered is the newest model, which other tests have made
    written = re.sub(r"model: \{path: \S+\}", "model: {path: model}", written)
    text.fill(written.replace("data:\n", "data:\n  max_drop: 0.2\n  max_seq_len: 96\n"))
    until(page, SETTLED)
    page.get_by_label("Name of the run").fill("my-first")
    page.get_by_role("button", name="Start the run").click()
    page.wait_for_url("**/run/my-first")
    page.wait_for_selector(".badge.finished", timeout=0)  # what hangs is ended by the guard of this lane
    losses = until(page, "watched.points && watched.points.metrics.loss.y")
    assert losses[-1] < losses[0] / 5
    image(page, "first-loss")

    page.get_by_role("link", name="Checkpoints").click()
    page.get_by_role("button", name="Chat").first.click()
    chats_ready(page)
    page.get_by_text("Parameters").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Message").fill(rows[0]["messages"][0]["content"])
    page.get_by_label("Message").press("Enter")
    until(page, "chat.panes[0].messages.length === 2 && document.getElementById('chat').dataset.busy === 'false'")
    assert page.evaluate("chat.panes[0].messages[1].content").strip() == rows[0]["messages"][1]["content"]
    image(page, "first-chat")


@pytest.mark.parametrize("options", [
    {"viewport": {"width": 360, "height": 740}}, {"locale": "zh-CN"}, {"color_scheme": "dark"}, {"java_script_enabled": False},
])  # fmt: skip
def test_a_file_is_readable_everywhere(visit, options):
    page = visit("/data/lines?path=rows.jsonl", **options)
    page.get_by_role("heading", name="rows.jsonl").wait_for()
    if options.get("java_script_enabled", True):
        page.wait_for_selector(".sample")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert not violations(page)
