"""The queue: order, places of each device, what waits for what and why, removal that can be undone."""

import json
import re

import pytest
from erniecore_webui.pages.queue import places, waits
from erniecore_webui.server import places_of
from erniecore_webui.site import Site
from erniecore_webui.tasks import Task

from erniecore.api import UsageError


@pytest.fixture
def started(monkeypatch):
    """Tasks are marked as begun; no process is started."""
    names = []

    def start(queue, task):
        names.append(task.title)
        (task.directory / "starting").touch()

    monkeypatch.setattr("erniecore_webui.tasks.Tasks._start", start)
    return names


def end(task: Task, code=0):
    (task.directory / "exit.json").write_text(json.dumps({"code": code, "time": 1}))


def why(queue):
    found = waits(queue.all(), queue)
    return {queue.get(name).title: [(w.reason, w.title, w.ahead) for w in reasons] for name, reasons in found.items()}


def test_each_device_has_its_places_and_a_task_says_what_it_waits_for(tmp_path, monkeypatch, started):
    monkeypatch.chdir(tmp_path)
    queue = Site(tmp_path / "runs", places=1, of_device={"cuda": 2}).tasks
    tasks = {name: queue.add(["x"], name, device=device, after=after, at_once=name == "now") for name, device, after in (
        ("a", "cuda", ()), ("b", "cuda", ()), ("c", "cuda", ()), ("d", "cuda", ()), ("cpu", "cpu", ()), ("now", "cpu", ()),
        ("late", "cpu", ()),
    )}  # fmt: skip
    assert started == ["a", "b", "cpu", "now"]
    assert why(queue) == {"c": [("place", "", 0)], "d": [("place", "", 1)], "late": [("place", "", 0)]}
    used = {p.device: (p.used, p.total, p.waiting) for p in places(queue.all(), queue)}
    assert used == {"cuda": (2, 2, 2), "cpu": (2, 1, 1)}
    end(tasks["a"])
    end(tasks["cpu"])
    queue.advance()
    assert started[4:] == ["c"]  # what was started at once still has the place of the CPU
    after = queue.add(["x"], "after", after=[tasks["b"].name, tasks["a"].name])
    assert why(queue)["after"] == [("after", "b", 0)]
    end(tasks["b"], 1)
    queue.advance()
    assert why(queue)["after"] == [("never", "b", 0)]
    queue.release(after.name)
    queue.advance()
    assert started[-1] == "after"


def test_what_was_removed_can_be_put_back_unless_its_name_is_taken(browser, site, started):
    first = site.tasks.add(["x"], "first", device="cpu")
    second = site.tasks.add(["x"], "second", device="cpu", run="mine")
    third = site.tasks.add(["x"], "third", after=[second.name])
    page = browser.post(f"/queue/{second.name}", data={"action": "cancel"}).text
    assert f'id="restore-{second.name}"' in page
    assert why(site.tasks) == {"third": [("never", "second", 0)]}
    assert "begins only when released" in page
    end(first)
    site.tasks.advance()
    assert started == ["first"]
    assert browser.post(f"/queue/{second.name}", data={"action": "restore"}).status_code == 200
    site.tasks.advance()
    assert started == ["first", "second"]
    assert site.tasks.get(third.name).state == "waiting"
    again = site.tasks.add(["x"], "again", device="cpu", run="other")
    site.tasks.cancel(again.name)
    site.tasks.add(["x"], "another", device="cpu", run="other")
    with pytest.raises(UsageError, match="taken"):
        site.tasks.restore(again.name)
    assert browser.post(f"/queue/{again.name}", data={"action": "restore"}).status_code == 400
    assert browser.post(f"/queue/{again.name}", data={"action": "explode"}).status_code == 400


def test_the_order_is_shown_and_changed(browser, site, started):
    tasks = [site.tasks.add(["x"], name, device="cpu") for name in ("going", "one", "two", "three")]
    page = browser.post(f"/queue/{tasks[3].name}", data={"action": "first"}).text
    said = re.findall(r'data-said="([^"]*)"', page)
    assert said == ["three: 1 of 3 in the queue", "one: 2 of 3 in the queue", "two: 3 of 3 in the queue"]
    assert "a place on cpu (behind 2)" in " ".join(page.split())
    assert "1 of 1 places used" in page
    rows = browser.post(f"/queue/{tasks[3].name}", data={"action": "down"}, headers={"hx-request": "true"}).text
    assert re.findall(r'data-said="(\w+)', rows) == ["one", "three", "two"]
    assert "<html" not in rows  # the part that is shown anew, with the focus where it was
    assert f'id="down-{tasks[3].name}"' in rows


def test_a_run_can_wait_for_another_task(browser, site, started, monkeypatch):
    monkeypatch.setattr("erniecore_webui.pages.new.judged", lambda *a: type("V", (), {"plan": {"x": 1}}))
    before = site.tasks.add(["x"], "before")
    assert f'value="after:{before.name}"' in browser.get("/new").text
    data = {"text": "method: sft", "name": "then", "when": f"after:{before.name}"}
    assert browser.post("/new/start", data=data).status_code == 200
    (task,) = [task for task in site.tasks.all() if task.run == "then"]
    assert (task.after, task.device, task.at_once, started) == ((before.name,), "cpu", False, ["before"])
    assert browser.post("/new/start", data={**data, "name": "never", "when": "after:nothing"}).status_code == 400


def test_places_are_numbers_of_all_devices_or_of_one():
    assert places_of([]) == (1, {})
    assert places_of(["2", "cuda=4", "xpu=1"]) == (2, {"cuda": 4, "xpu": 1})
    for wrong in ("0", "65", "x", "cuda=", "=2", "cuda=-1", "²"):
        with pytest.raises(UsageError, match="places"):
            places_of([wrong])
