"""Evaluate, Machine and Plugins in a real browser, with the real commands; a checkpoint that is served by one click."""

import json

import pytest
from browser_checks import until, violations

pytestmark = [pytest.mark.web, pytest.mark.slow]


def test_a_checkpoint_is_exported_and_talks_by_one_click(visit, server):
    process = server.train(
        "talks", "train.max_steps=3", "checkpoint.every=3", "train.warmup_steps=1", "checkpoint.export=false"
    )
    assert process.wait() == 0
    page = visit("/run/talks/checkpoints")
    page.get_by_role("button", name="Chat").first.click()
    until(page, "document.querySelectorAll('.pane[data-state=ready]').length === 1 && !!window.chat")
    page.get_by_label("Message").fill("hello")
    page.get_by_label("Message").press("Enter")
    until(page, "chat.panes[0].messages.length === 2")
    assert page.evaluate("chat.panes[0].whole")
    page.get_by_role("button", name="Stop").first.click()
    until(page, "document.querySelectorAll('.pane[data-state=none]').length === 1")


def test_it_is_compared_with_its_base_and_the_result_stays(visit, server, image):
    page = visit("/evaluate?model=model")
    page.get_by_label("Compare with").select_option("runs/talks/exported/step-00000003")
    page.get_by_label("Data file").fill("rows.jsonl")
    page.get_by_label("Also generate").check()
    page.get_by_label("Most tokens").fill("4")
    page.get_by_role("button", name="Evaluate").first.click()
    page.wait_for_selector("#results svg")
    names = page.locator("#results tbody tr td:nth-child(2)").all_inner_texts()
    assert names[:2] == ["loss", "accuracy"]
    a, b, difference = (
        float(page.locator("#results tbody tr").first.locator("td").nth(n).inner_text()) for n in (2, 3, 4)
    )
    assert difference != 0
    assert abs(b - a - difference) < 0.01
    assert not violations(page)
    image(page, "evaluate")
    commands = [
        json.loads(line)["command"] for line in (server.home / "runs/.web/audit.jsonl").read_text().splitlines()
    ]
    command = "ernie eval --compare model runs/talks/exported/step-00000003 --data rows.jsonl --method sft --generate"
    assert f"{command} --max-new-tokens 4 --json" in commands


def test_the_doctor_comes_after_the_page(visit):
    page = visit("/machine")
    page.get_by_text("usable cores").wait_for()
    assert not violations(page)
