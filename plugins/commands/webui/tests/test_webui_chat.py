"""Chat: the model's server as a task, its answers passed on, rows that are saved."""

import asyncio
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
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


@pytest.mark.parametrize("change", [
    {"messages": []}, {"messages": "x"}, {"chosen": {"role": "assistant", "content": " "}},
    {"rejected": {"role": "x", "content": "a"}},
    {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, {"file": "../x"}, {"file": ".x"}, {"file": ""},
    {"messages": [*PREFERENCE["messages"], PREFERENCE["chosen"]]}, {"chosen": {"role": "assistant", "content": "\ud800"}},
    {"chosen": {"role": "assistant", "content": "a", "tool_calls": [float("inf")]}}, {"file": "a\ud800"},
])  # fmt: skip
def test_what_is_no_row_is_not_written(browser, site, change):
    body = json.dumps({"file": "mine", **PREFERENCE, **change}).replace("Infinity", "1e999")
    assert browser.post("/chat/save", content=body).status_code == 400
    assert not list((site.root).glob("data/*"))
