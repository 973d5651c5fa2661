"""Models in a real browser: answers that stream, cancel and retry, two beside each other, a killed server of the page."""

import json

import pytest
from browser_checks import chats_ready, until, violations
from seers import make_seer
from talker import make_talker, roomy

pytestmark = [pytest.mark.web, pytest.mark.slow]

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
#: a function alone, without its type
WEATHER = {"name": "get_weather", "parameters": CITY}


@pytest.fixture(scope="module")
def tasks_end(server):
    """No model of this module is left running."""
    yield
    import os
    import signal

    for file in (server.home / "runs/.web/tasks").glob("*/started.json"):
        if not (file.parent / "exit.json").exists():
            os.kill(json.loads(file.read_text())["child"], signal.SIGTERM)


def say(page, text):
    page.get_by_label("Message").fill(text)
    page.get_by_label("Message").press("Enter")


def ended(page):
    until(page, "window.chat && document.getElementById('chat').dataset.busy === 'false'")


def test_a_model_answers_in_the_page(visit, server, tasks_end):
    page = visit("/models")
    page.get_by_role("link", name="Chat with model", exact=True).click()
    page.get_by_role("button", name="Start").click()
    chats_ready(page)
    page.get_by_text("Parameters").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Most tokens").fill("40")
    say(page, "copy 8787")
    until(page, "document.querySelector('.said.assistant .text').textContent.length > 0")
    ended(page)
    first = page.evaluate("chat.panes[0].messages")
    assert [message["role"] for message in first] == ["user", "assistant"]
    assert page.locator(".said.assistant .text").inner_text().strip() == first[1]["content"].strip()
    page.get_by_role("button", name="Retry").click()
    ended(page)
    assert page.evaluate("chat.panes[0].messages") == first  # greedy
    page.get_by_role("button", name="Save as a training row").click()
    page.get_by_text("Saved to runs/data/chat.jsonl").wait_for()
    (row,) = map(json.loads, (server.home / "runs/data/chat.jsonl").read_text().splitlines())
    assert [(m["role"], m["content"]) for m in row["messages"]] == [(m["role"], m["content"]) for m in first]
    assert not violations(page)


def test_the_model_outlives_the_killed_server_of_the_page(visit, server, tasks_end):
    page = visit("/chat?model=model")
    chats_ready(page)
    visit.expected += ["ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET"]  # of what the open page loads meanwhile
    pids = sorted((server.home / "runs/.web/tasks").glob("*/started.json"))
    server.kill()
    server.start()
    page.goto(server.base + "/chat?model=model")
    chats_ready(page)
    say(page, "hello")
    ended(page)
    assert page.evaluate("chat.panes[0].whole")
    assert sorted((server.home / "runs/.web/tasks").glob("*/started.json")) == pids


def test_an_answer_is_canceled_and_the_model_is_free_again(visit, server, tasks_end):
    roomy(server.home, server.home / "long", 65536)
    page = visit("/chat?model=long")
    page.get_by_role("button", name="Start").click()
    chats_ready(page)
    page.evaluate("chat.parameters = () => ({max_tokens: 60000, temperature: 1, seed: 3, ignore_eos: true})")
    say(page, "tell me")
    until(page, "document.querySelector('.said.assistant .text').textContent.length > 0")
    page.get_by_role("button", name="Cancel").click()
    ended(page)
    assert page.locator(".said.assistant small").inner_text() == "Canceled."
    assert page.get_by_role("button", name="Save as a training row").is_disabled()
    page.evaluate("chat.parameters = () => ({max_tokens: 4})")
    page.get_by_role("button", name="Retry").click()
    ended(page)
    assert page.evaluate("chat.panes[0].whole")
    page.get_by_role("button", name="Stop").first.click()
    until(page, "document.querySelectorAll('.pane[data-state=none]').length === 1")


def test_two_models_beside_each_other_and_the_better_answer(visit, server, tasks_end):
    page = visit("/models/show?path=model")
    page.get_by_label("Name of the new directory").first.fill("small")
    page.get_by_role("button", name="Quantize").click()
    page.get_by_role("link", name="runs/models/small", exact=True).wait_for()
    page.goto(server.base + "/chat?model=model&model=runs/models/small")
    page.get_by_role("button", name="Start").click()
    chats_ready(page, 2)
    say(page, "copy 12")
    ended(page)
    assert page.locator(".said.assistant").count() == 2
    page.get_by_role("button", name="The second").click()
    page.get_by_text("Saved to runs/data/preferences.jsonl").wait_for()
    (row,) = map(json.loads, (server.home / "runs/data/preferences.jsonl").read_text().splitlines())
    answers = page.evaluate("[...document.querySelectorAll('.said.assistant .text')].map((e) => e.textContent)")
    assert [row["rejected"]["content"], row["chosen"]["content"]] == answers
    assert page.evaluate("JSON.stringify(chat.panes[0].messages) === JSON.stringify(chat.panes[1].messages)")
    assert page.get_by_role("button", name="The second").is_disabled()
    page.get_by_role("button", name="Stop").last.click()
    until(page, "document.querySelectorAll('.pane[data-state=none]').length === 1")


def test_calls_of_tools_are_answered_by_hand_with_the_keyboard(visit, server, tasks_end, image):
    (server.home / "thinks").mkdir()
    make_talker(server.home / "thinks", 2048, "thinking")
    page = visit("/chat?model=thinks/model")
    page.get_by_role("button", name="Start").press("Enter")
    chats_ready(page)
    page.get_by_text("Tools", exact=True).press("Enter")
    page.get_by_label("Definitions as JSON").fill('{"name": 3}')
    assert page.get_by_text("This is no list of tools").is_visible()
    page.get_by_role("button", name="Example").press("Enter")
    assert page.locator("#tools-told").inner_text() == "get_weather"
    (server.home / "tools.json").write_text(json.dumps(WEATHER))
    page.locator("#tools-file").set_input_files(server.home / "tools.json")
    until(page, "document.getElementById('tools').value.includes('Oslo')")
    page.get_by_label("Calls").select_option("required")
    page.get_by_text("Parameters").press("Enter")
    page.get_by_label("Most tokens").fill("300")
    # random weights: their reasoning would not end by itself
    page.evaluate(
        "(() => { const own = chat.parameters.bind(chat); chat.parameters = () => ({...own(), ...chat.more}); })()"
    )
    page.evaluate("chat.more = {logit_bias: {13: 100}}")
    say(page, "weather in Oslo?")
    result = page.get_by_label("Result of get_weather")
    result.wait_for()
    ended(page)
    assert page.locator("#send").is_disabled()  # the call comes first
    assert page.evaluate("document.activeElement === document.querySelector('.calls textarea')")
    assert not violations(page)
    result.fill("3 degrees")
    page.evaluate("document.querySelector('.pane').scrollIntoView()")
    image(page, "tools")
    page.get_by_label("Calls").select_option("none")
    page.evaluate("chat.more.guided_choice = ['cold']")
    result.press("Control+Enter")
    until(page, "chat.panes[0].messages.length === 4")
    ended(page)
    assert page.locator(".said.tool").inner_text() == "3 degrees"
    page.get_by_role("button", name="Save as a training row").press("Enter")
    page.get_by_text("Saved to runs/data/chat.jsonl").wait_for()
    row = json.loads((server.home / "runs/data/chat.jsonl").read_text().splitlines()[-1])
    assert [message["role"] for message in row["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert json.loads(row["messages"][1]["tool_calls"][0]["function"]["arguments"]) == {"city": "Oslo"}
    assert row["messages"][3]["content"].strip() == "cold"
    assert row["tools"] == [{"type": "function", "function": WEATHER}]
    page.get_by_role("button", name="Stop").first.click()
    until(page, "document.querySelectorAll('.pane[data-state=none]').length === 1")


def test_an_image_is_asked_about_and_two_answers_of_one_model_become_a_preference(visit, server, tasks_end):
    (server.home / "seer").mkdir()
    make_seer(server.home / "seer")
    page = visit("/chat?model=seer/model&model=seer/model")
    page.get_by_role("button", name="Start").first.click()
    chats_ready(page, 2)
    page.locator("#attach").set_input_files([server.home / "seer/a.png", server.home / "seer/b.png"])
    page.locator(".attached img").nth(1).wait_for()
    page.get_by_role("button", name="Remove image 2").press("Enter")
    until(page, "document.querySelectorAll('.attached img').length === 1")
    page.get_by_text("Parameters").click()
    page.get_by_label("Temperature").fill("1")
    page.get_by_label("Most tokens").fill("6")
    page.get_by_label("Seed").fill("3")
    say(page, "What is it?")
    until(page, "chat.panes.every((pane) => pane.messages.length === 2)")
    ended(page)
    assert page.locator(".said.user img").count() == 2
    assert page.evaluate("chat.panes.every((pane) => pane.whole)")
    assert not violations(page)
    page.get_by_role("button", name="The first").press("Enter")
    page.get_by_text("Saved to runs/data/preferences.jsonl").wait_for()
    row = json.loads((server.home / "runs/data/preferences.jsonl").read_text().splitlines()[-1])
    assert row["chosen"] != row["rejected"]  # two seeds
    assert row["messages"] == [{"role": "user", "content": "<image>What is it?"}]
    (image,) = row["images"]
    assert (server.home / "runs/data" / image).read_bytes() == (server.home / "seer/a.png").read_bytes()
    page.get_by_role("button", name="Stop").first.click()
    until(page, "document.querySelectorAll('.pane[data-state=none]').length === 2")
