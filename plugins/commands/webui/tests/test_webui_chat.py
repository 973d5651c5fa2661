"""Chat: the model's server as a task, its answers passed on, rows that are saved."""

import asyncio
import base64
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from erniecore_webui import chat_rows
from erniecore_webui.actions import ERNIE
from erniecore_webui.relay import post
from erniecore_webui.site import Site
from erniecore_webui.state_files import kept_secret
from webui_runs import write_model

PREFERENCE = {"messages": [{"role": "user", "content": "q"}], "chosen": {"role": "assistant", "content": "a"},
              "rejected": {"role": "assistant", "content": "b"}}  # fmt: skip


@pytest.fixture
def model(site, monkeypatch):
    """A model whose server was started long ago: by a process that goes on, which is this one."""
    write_model(site.home / "model")
    monkeypatch.setattr(site.tasks, "_start", lambda task: None)
    site.models.forget()
    return "model"


def running(site, port):
    from erniecore_webui.detached import start_ticks

    task = site.chats.start("model").task
    facts = {"pid": os.getpid(), "ticks": start_ticks(os.getpid()), "child": 0, "time": time.time()}
    (task.directory / "started.json").write_text(json.dumps(facts))
    (task.directory / "output.log").write_text(f"model at http://127.0.0.1:{port}/v1; stop with Ctrl-C\n")


def test_a_model_is_served_by_a_task_that_another_server_of_the_page_finds(browser, site, model):
    assert browser.get("/chat/state?model=model").json()["state"] == "none"
    page = browser.post("/chat/do/start", data={"model": "model", "pane": "model"})
    assert page.url.query.decode() == "model=model"
    assert browser.get("/chat/state?model=model").json()["state"] == "waiting"
    browser.post("/chat/do/start", data={"model": "model", "pane": "model"})
    (task,) = site.tasks.all()  # a second start changes nothing
    assert task.argv[: len(ERNIE) + 1] == (*ERNIE, "serve")
    assert not any(site.chats.key in word for word in task.argv)
    running(site, 4567)
    assert Site(site.root).chats.of("model").port == 4567
    assert 'data-state="ready"' in browser.get("/chat?model=model").text


def test_two_tabs_start_one_server(site, model):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: site.chats.start("model").task.name, range(8)))
    assert set(found) == {task.name for task in site.tasks.all()}
    assert len(set(found)) == 1
    fresh = site.state / "fresh"
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: kept_secret(fresh), range(32)))) == 1
    assert fresh.stat().st_mode & 0o777 == 0o600
    assert not list(site.state.glob(".fresh*"))


def test_only_a_model_that_was_found_is_started(browser, site, model):
    for place in ("", "/etc", "runs/first", "../model"):
        assert browser.post("/chat/do/start", data={"model": place}).status_code == 400
    assert browser.post("/chat/answer?model=model", json={"messages": []}).status_code == 409
    assert not site.tasks.all()


def test_a_server_that_waits_for_an_export_that_failed_has_failed(site, model):
    task = site.tasks.add([*ERNIE, "export"], "export")
    assert site.chats.start("other", [task.name]).state == "waiting"
    (task.directory / "exit.json").write_text('{"code": 5, "time": 1}')
    assert site.chats.of("other").state == "failed"


def test_an_answer_is_passed_on_as_it_comes_and_a_browser_that_leaves_ends_it():
    async def scenario():
        seen, gone = [], asyncio.Event()

        async def serve(reader, writer):
            seen.append(await reader.readuntil(b"{}"))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            writer.write(b"8\r\ndata: a\n\r\n")
            await writer.drain()
            assert await reader.read() == b""  # the other side has hung up
            gone.set()
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            answer = await post(server.sockets[0].getsockname()[1], "/v1/x", b"{}", "the-key")
            assert answer.media_type == "text/event-stream"
            assert await anext(answer.body_iterator) == b"data: a\n"
            await answer.body_iterator.aclose()
            await gone.wait()
        assert b"authorization: Bearer the-key" in seen[0].replace(b"Authorization", b"authorization")

    asyncio.run(scenario())


def test_a_server_that_is_gone_is_an_error_that_the_page_shows(browser, site, model):
    running(site, 1)
    answer = browser.post("/chat/answer?model=model", json={"messages": []})
    assert answer.status_code == 502
    assert "does not answer" in answer.json()["error"]["message"]


def test_rows_are_appended_as_the_format_messages_reads_them(browser, site):
    from erniecore_formats.messages import parse

    from erniecore.api.data import Origin

    said = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "reasoning_content": "r", "id": 5}]
    for row in ({"messages": said}, PREFERENCE):
        answer = browser.post("/chat/save", json={"file": "mine", **row})
        assert answer.json() == {"file": "runs/data/mine.jsonl"}
    rows = [json.loads(line) for line in (site.root / "data/mine.jsonl").read_text().splitlines()]
    assert rows[0]["messages"][1] == {"role": "assistant", "content": "a", "reasoning_content": "r"}
    assert rows[1] == PREFERENCE
    assert [
        json.loads(line)["command"].split()[0] for line in (site.state / "audit.jsonl").read_text().splitlines()
    ] == ["tee"] * 2
    assert [type(parse(row, Origin("x", 1))).__name__ for row in rows] == ["Conversation", "Preference"]


PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}


def attached(browser, content=PNG):
    return browser.post("/chat/image", content=content)


def test_an_image_is_a_file_below_the_root_and_a_data_url_for_the_model(browser, site, model):
    url = attached(browser).json()["url"]
    assert attached(browser).json()["url"] == url  # the same content
    (path,) = (site.root / "data/images").iterdir()
    assert path.read_bytes() == PNG
    shown = browser.get(url)
    assert (shown.content, shown.headers["content-type"]) == (PNG, "image/png")
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what is it?"}]
    sent = chat_rows.with_images(site.root, [{"role": "user", "content": parts}, {"role": "assistant", "content": "x"}])
    assert base64.b64decode(sent[0]["content"][0]["image_url"]["url"].removeprefix("data:image/png;base64,")) == PNG
    assert sent[1]["content"] == "x"
    path.unlink()
    running(site, 1)
    gone = browser.post("/chat/answer?model=model", json={"messages": [{"role": "user", "content": parts}]})
    assert (gone.status_code, "not here any more" in gone.text) == (400, True)


def test_what_is_no_image_is_not_kept(browser, site, monkeypatch):
    assert attached(browser, b"<svg onload=alert(1)>").status_code == 400
    assert attached(browser, b"").status_code == 400
    monkeypatch.setattr(chat_rows, "IMAGE_BYTES", 40)
    assert attached(browser).status_code == 400
    assert browser.post("/chat/image", content=PNG, headers={"x-csrf-token": "wrong"}).status_code == 403
    assert not list((site.root / "data").rglob("*.*"))
    (site.root / "data/images").mkdir(parents=True, exist_ok=True)
    (site.root / "data/images/x.png").write_bytes(PNG)
    for name in ("x.png", "..%2f..%2f.web%2ftoken", "0" * 32 + ".png"):
        assert browser.get(f"/chat/image/{name}").status_code == 404


def test_rows_have_tools_calls_results_and_images(browser, site):
    from erniecore_formats.messages import parse

    from erniecore.api.data import Origin

    image = {"type": "image_url", "image_url": {"url": attached(browser).json()["url"]}}
    question = {"role": "user", "content": [image, {"type": "text", "text": "weather here?"}]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "3 degrees"}
    turn = [
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        result,
        {"role": "assistant", "content": "cold"},
    ]
    plain = {"role": "assistant", "content": "warm"}
    for row in ({"messages": [question, *turn]}, {"messages": [question], "chosen": turn, "rejected": plain}):
        assert browser.post("/chat/save", json={"file": "mine", "tools": [TOOL], **row}).status_code == 200
    path = site.root / "data/mine.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    said, pair = (parse(row, Origin(str(path), number)) for number, row in enumerate(rows, 1))
    assert [message.role for message in said.messages] == ["user", "assistant", "tool", "assistant"]
    assert said.messages[1].tool_calls[0].arguments == CALL["function"]["arguments"]
    assert said.tools == pair.tools == (TOOL,)
    (media,) = said.messages[0].media
    assert (Path(media.base) / media.source).read_bytes() == PNG
    assert said.messages[0].content == "<image>weather here?"
    assert [[m.content for m in side] for side in (pair.chosen, pair.rejected)] == [["", "3 degrees", "cold"], ["warm"]]


@pytest.mark.parametrize("change", [
    {"messages": []}, {"messages": "x"}, {"chosen": {"role": "assistant", "content": " "}},
    {"rejected": {"role": "x", "content": "a"}},
    {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, {"file": "../x"}, {"file": ".x"}, {"file": ""},
    {"messages": [*PREFERENCE["messages"], PREFERENCE["chosen"]]}, {"chosen": {"role": "assistant", "content": "\ud800"}},
    {"chosen": {"role": "assistant", "content": "a", "tool_calls": [float("inf")]}}, {"file": "a\ud800"},
    {"chosen": []}, {"chosen": [{"role": "tool", "content": "x"}]}, {"tools": "x"},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "/etc/passwd"}}]}]},
])  # fmt: skip
def test_what_is_no_row_is_not_written(browser, site, change):
    body = json.dumps({"file": "mine", **PREFERENCE, **change}).replace("Infinity", "1e999")
    assert browser.post("/chat/save", content=body).status_code == 400
    assert not list((site.root).glob("data/*"))
