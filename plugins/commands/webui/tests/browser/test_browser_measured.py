"""Evaluate, Machine and Plugins in a real browser, with the real commands; a checkpoint that is served by one click."""

import json
import shutil

import pytest
from browser_checks import chats_ready, until, violations
from talker import make_adapter

pytestmark = [pytest.mark.web, pytest.mark.slow]


def test_a_checkpoint_is_exported_and_talks_by_one_click(visit, server):
    process = server.train(
        "talks", "train.max_steps=3", "checkpoint.every=3", "train.warmup_steps=1", "checkpoint.export=false",
        "--callback", "eval-generate", "eval.every=1", "callbacks.eval-generate.max_new_tokens=4",
        "callbacks.eval-generate.limit=2",
    )  # fmt: skip
    assert process.wait() == 0
    page = visit("/run/talks/checkpoints")
    page.get_by_role("button", name="Chat").first.click()
    chats_ready(page)
    page.get_by_label("Message").fill("hello")
    page.get_by_label("Message").press("Enter")
    until(page, "chat.panes[0].messages.length === 2")
    assert page.evaluate("chat.panes[0].whole")
    page.get_by_role("button", name="Stop").first.click()
    until(page, "document.querySelectorAll('.pane[data-state=none]').length === 1")


def test_what_it_wrote_while_it_trained_is_on_its_page(visit, server):
    page = visit("/run/talks/evaluations")
    rows = [json.loads(line) for line in (server.home / "runs/talks/eval-generate.jsonl").read_text().splitlines()]
    assert page.locator(".written tbody tr").count() == 2
    assert page.locator(".written td:nth-child(2)").all_inner_texts()[-1].strip() == rows[-1]["completion"].strip()
    page.get_by_role("link", name="1", exact=True).click()
    page.wait_for_url("**step=1")
    assert page.locator(".written td:nth-child(2)").all_inner_texts()[0].strip() == rows[0]["completion"].strip()
    assert not violations(page)


def test_it_is_compared_with_its_base_and_the_result_stays(visit, server, image):
    page = visit("/evaluate?model=model")
    page.get_by_label("Compare with").select_option("runs/talks/exported/step-00000003")
    page.get_by_label("Data file").fill("rows.jsonl")
    page.get_by_label("Also generate").check()
    page.get_by_label("Most tokens").fill("4")
    page.get_by_role("button", name="Evaluate").first.click()
    page.wait_for_selector("#rows svg")
    names = page.locator("#rows tbody tr td:nth-child(2)").all_inner_texts()
    assert names[:2] == ["loss", "accuracy"]
    a, b, difference = (
        float(page.locator("#rows tbody tr").first.locator("td").nth(n).inner_text()) for n in (2, 3, 4)
    )
    assert difference != 0
    assert abs(b - a - difference) < 0.01
    assert not violations(page)
    image(page, "evaluate")
    commands = [
        json.loads(line)["command"] for line in (server.home / "runs/.web/audit.jsonl").read_text().splitlines()
    ]
    command = "ernie eval --compare model runs/talks/exported/step-00000003 --data rows.jsonl --method sft --generate"
    out = "runs/evaluations/model-runs-talks-exported-step-00000003-rows/evaluation.json"
    assert f"{command} --max-new-tokens 4 --out {out}" in commands
    assert json.loads((server.home / out).read_text())["hashes"]["a"]["rows_sha256"]


def test_results_outlive_their_tasks_and_are_compared_and_deleted_by_keyboard(visit, server):
    page = visit("/evaluate")
    for place in ("model", "runs/talks/exported/step-00000003"):
        page.get_by_label("Model", exact=True).first.select_option(place)
        page.get_by_label("Data file").fill("rows.jsonl")
        page.get_by_label("Data file").press("Enter")
        page.get_by_label(f"Choose {place.replace('/', '-')}-rows", exact=True).wait_for()
    for file in (server.home / "runs/.web/tasks").glob("*/task.json"):
        if "eval" in json.loads(file.read_text())["title"]:
            shutil.rmtree(file.parent)
    page.goto(server.base + "/evaluate")
    for name in ("model-rows", "runs-talks-exported-step-00000003-rows"):
        page.get_by_label(f"Choose {name}", exact=True).press("Space")
    page.get_by_role("button", name="Compare").press("Enter")
    compared = "model-rows-runs-talks-exported-step-00000003-rows"
    row = page.locator(f"#{compared} tbody tr").first
    row.wait_for()
    both, apart = (
        json.loads((server.home / f"runs/evaluations/{name}/evaluation.json").read_text())["loss"]
        for name in (compared, "model-rows")
    )
    assert abs(both["a"] - apart) < 1e-9  # the same rows, each by itself
    page.get_by_label("Choose model-rows", exact=True).press("Space")
    page.get_by_role("button", name="Delete").press("Enter")
    page.get_by_role("button", name="Undo").wait_for()
    assert not (server.home / "runs/evaluations/model-rows").exists()
    page.get_by_role("button", name="Undo").press("Enter")
    page.get_by_label("Choose model-rows", exact=True).wait_for()
    assert not violations(page)


def test_the_doctor_comes_after_the_page(visit):
    page = visit("/machine")
    page.get_by_text("usable cores").wait_for()
    assert not violations(page)


def done(page, place):
    """Wait until the command that was started last has ended well, and go to what it wrote."""
    page.locator("#works .work").first.locator(".badge.finished").wait_for()
    page.get_by_role("link", name=place, exact=True).first.press("Enter")
    page.wait_for_url(f"**/show?path={place}")


def test_an_adapter_is_merged_the_model_quantized_exported_and_checked(visit, server, image):
    make_adapter(server.home / "model", server.home / "added", 3)
    page = visit("/models")
    page.get_by_label("Adapters only").press("Space")
    until(page, "document.querySelectorAll('#models tbody tr').length === 1")
    page.get_by_role("link", name="added").press("Enter")
    page.get_by_label("Base model").fill("model")
    page.get_by_role("button", name="Merge").press("Enter")
    done(page, "runs/models/added-merged")
    page.get_by_label("Quantizer").select_option("gptq")
    page.get_by_role("button", name="Quantize").press("Enter")
    page.get_by_text("gptq needs calibration data").wait_for()  # as the command says it
    page.get_by_label("Quantizer").select_option("gptq")
    page.get_by_label("Calibration data").fill("rows.jsonl")
    page.get_by_label("Name of the new directory").first.fill("small-gptq")
    page.get_by_role("button", name="Quantize").press("Enter")
    done(page, "runs/models/small-gptq")
    page.goto(server.base + "/models/show?path=runs/models/added-merged")
    page.get_by_label("Format").select_option("fastdeploy")
    page.get_by_role("button", name="Export").press("Enter")
    done(page, "runs/models/added-merged-exported")
    page.get_by_label("Rules of").select_option("fastdeploy")
    page.get_by_role("button", name="Check").press("Enter")
    page.get_by_text("keeps the contract fastdeploy").wait_for()
    page.locator("#works .work").first.locator(".badge.finished").wait_for()
    page.evaluate("scrollTo(0, 0)")
    image(page, "model")
    assert not violations(page)


def test_conformance_is_run_and_its_outcome_stands_at_the_plugin(visit):
    page = visit("/plugins")
    page.get_by_role("button", name="Conformance of console").press("Enter")
    page.locator("#callback-console").get_by_text("passed").wait_for()
    assert not violations(page)


def test_a_device_is_opened_from_the_page(visit):
    page = visit("/machine")
    page.get_by_role("button", name="Open the device").press("Enter")
    page.wait_for_selector("#tasks tr:has-text('doctor') .badge.finished")
    page.goto(page.url.split("/queue")[0] + "/machine")
    page.get_by_text("usable cores").wait_for()
    assert not violations(page)
