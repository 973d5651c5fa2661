"""A new run in a browser: from the form and from YAML, with the errors and the plan of the command, to its live curves."""

import pytest
from browser_checks import until, violations
from erniecore_webui.actions import Actions
from erniecore_webui.tasks import Tasks

pytestmark = [pytest.mark.web, pytest.mark.slow]
SETTLED = "document.getElementById('new').dataset.settled === 'true'"
YAML = """# from the page
model: {path: model}
method: {name: sft}
data: {train: [{path: rows.jsonl}], format: messages, max_seq_len: 96}
train: {max_steps: 150, batch_size: 4, learning_rate: 0.002}
log: {report: false}
"""


def settle(page):
    until(page, SETTLED)
    return page


def test_a_run_starts_from_form_and_text_and_shows_its_loss(visit, server, image):
    page = settle(visit("/new"))
    page.locator("#text").fill(YAML)
    settle(page)
    assert page.get_by_text("The settings are right.").is_visible()
    assert page.locator("[id='f-train.batch_size']").input_value() == "4"
    page.locator("[id='f-train.batch_size']").fill("-1")
    until(page, "document.querySelector('[data-bad=\"train.batch_size\"]').textContent.includes('must be ≥ 1')")
    assert page.locator("#start").is_disabled()
    code = page.locator("[data-bad='train.batch_size'] a")
    assert (code.inner_text(), code.get_attribute("href")) == ("ERN-C010", "/errors/ERN-C010")
    page.get_by_label("Search settings").fill("seed")  # which hides the wrong field
    page.locator("#at").get_by_text("train.batch_size").press("Enter")
    assert page.evaluate("document.activeElement.id") == "f-train.batch_size"
    page.locator("[id='f-train.batch_size']").fill("10")
    page.get_by_label("Search settings").fill("seed")
    page.locator("[id='f-run.seed']").fill("7")
    until(page, f"{SETTLED} && document.getElementById('text').value.includes('seed: 7')")
    assert page.locator("#text").input_value() == YAML.replace("batch_size: 4", "batch_size: 10") + "run:\n  seed: 7\n"
    assert "run.seed=7" in page.locator("#command").inner_text()
    assert page.locator("#plan").inner_text().splitlines().count("150") == 1
    page.get_by_label("Search settings").fill("")
    assert violations(page) == []
    image(page, "new")
    page.get_by_label("Name of the run").fill("from-page")
    page.get_by_role("button", name="Start the run").click()
    page.wait_for_url("**/run/from-page")
    until(page, "watched.points && watched.points.metrics.loss && watched.points.metrics.loss.x.length > 3")
    assert (server.home / "runs/settings/from-page.yaml").read_text().startswith("# from the page\n")
    page.wait_for_selector(".badge.finished")
    page.get_by_role("link", name="Clone").click()
    settle(page)
    assert page.get_by_label("Name of the run").input_value() == "from-page-1"
    assert page.locator("[id='f-train.max_steps']").input_value() == "150"
    assert page.get_by_text("The settings are right.").is_visible()


def test_another_method_has_other_fields_by_keyboard_alone_on_a_phone(visit):
    page = settle(visit("/new", viewport={"width": 360, "height": 700}, locale="zh-CN", color_scheme="dark"))
    assert page.locator("h1").inner_text() == "新建运行"
    page.locator("[id='f-method.name']").focus()
    page.keyboard.type("dpo")
    until(page, f"{SETTLED} && document.getElementById('text').value.includes('name: dpo')")
    assert page.evaluate("document.activeElement.id") == "f-method.name"
    assert page.locator("[id='f-method.beta']").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert violations(page) == []


def test_another_toolkit_s_file_becomes_settings_and_a_change_that_fits_is_applied_by_keyboard(visit, image):
    page = settle(visit("/new", color_scheme="dark"))
    foreign = "model_name_or_path: model\nstage: SFT\nfine_tuning: LoRA\ntrain_dataset_path: rows.jsonl\n"
    foreign += "train_dataset_type: messages\nmax_steps: 10\nbatch_size: 4\nmax_seq_len: 96\n"
    file = {"name": "old.yaml", "mimeType": "application/yaml", "buffer": foreign.encode()}
    page.get_by_label("Open a file").set_input_files(file)
    page.get_by_role("button", name="Convert them").click()
    until(page, f"{SETTLED} && document.getElementById('verdict').textContent === 'The settings are right.'")
    assert page.locator("#imported").get_by_text("stage", exact=True).is_visible()
    assert page.locator("[id='f-adapter.rank']").input_value() == "8"
    assert not page.get_by_role("button", name="Convert them").is_visible()
    page.locator("#plan .smaller summary").focus()
    page.keyboard.press("Enter")
    first = page.locator("#plan [data-apply]").first
    key, _, value = first.get_attribute("data-apply").splitlines()[0].partition("=")
    image(page, "new-fits")
    first.focus()
    page.keyboard.press("Enter")
    until(page, f"{SETTLED} && document.getElementById('f-{key}').value === '{value}'")
    page.get_by_label("visualdl").check()
    until(page, f"{SETTLED} && document.getElementById('text').value.includes('callbacks: [visualdl]')")
    page.get_by_label("Search settings").fill("visualdl.every")
    page.locator("[id='f-callbacks.visualdl.every']").fill("3")
    until(page, f"{SETTLED} && document.getElementById('text').value.includes('callbacks: {{visualdl: {{every: 3}}}}')")
    assert "callbacks.visualdl" in page.locator("#command").inner_text()
    page.get_by_text("Several accelerators").click()
    page.get_by_label("At most").press("Enter")
    until(page, "document.querySelector('#proposed [data-apply]') !== null")
    assert "parallel.name=hybrid" in page.locator("#proposed").inner_text()
    assert violations(page) == []


@pytest.fixture
def queued(server):
    """One command that goes on, and two that wait for its place."""
    state = server.home / "runs/.web"
    queue = Tasks(state, server.home, Actions(state, server.home))
    tasks = [queue.add(["sleep", "600"], title, device="held") for title in ("going", "second", "third")]
    yield tasks
    for task in reversed(tasks):
        queue.cancel(task.name)


def test_the_queue_is_put_in_order_by_keyboard_on_a_phone(visit, queued):
    _, second, third = queued
    page = visit("/queue", viewport={"width": 360, "height": 700}, color_scheme="dark")
    until(page, f"document.getElementById('up-{third.name}') !== null")
    assert "held 1 of 1 places used · 2 waiting" in page.locator(".places").inner_text()
    assert "a place on held (behind 1)" in page.locator("tr", has_text="third").inner_text()
    page.locator(f"#up-{third.name}").focus()
    page.keyboard.press("Enter")
    until(page, "document.getElementById('moved').textContent === 'third: 1 of 2 in the queue'")
    with page.expect_response("**/queue"):  # the list is shown anew every two seconds
        pass
    until(page, f"document.activeElement.id === 'up-{third.name}'")
    page.locator(f"#cancel-{second.name}").focus()
    page.keyboard.press("Enter")
    until(page, f"document.getElementById('restore-{second.name}') !== null")
    until(page, f"document.activeElement.id === 'task-{second.name}'")
    page.locator(f"#restore-{second.name}").press("Enter")
    until(page, f"document.getElementById('up-{second.name}') !== null")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert violations(page) == []
