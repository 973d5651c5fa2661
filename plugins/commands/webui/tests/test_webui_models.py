"""Models below the roots, what the page says of them, and the commands that it queues."""

import json
import os
import re
import shutil
import time

import pytest
from erniecore_webui.actions import ERNIE
from erniecore_webui.site import Site
from webui_runs import write_model


@pytest.fixture
def models(site):
    write_model(site.root / "first/model")
    write_model(site.root / "first/exported/step-00000010")
    write_model(site.home / "bases/q8", quantization_config={"quant_method": "erniecore", "quantizer": "wint8"})
    manifest = {"provenance": {"parameters": 26080, "method": "sft", "base": "bases/x"}}
    (site.root / "first/model/erniecore_manifest.json").write_text(json.dumps(manifest))
    adapter = site.root / "group/second/adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 8, "base_model_name_or_path": "bases/x"}')
    site.models.forget()
    return site


def test_models_of_runs_packed_ones_and_adapters_are_found(browser, models):
    assert set(models.models.found()) == {"runs/first/model", "runs/first/exported/step-00000010", "bases/q8",
                                          "runs/group/second/adapter"}  # fmt: skip
    text = browser.get("/models").text
    for shown in ("bases/q8", "wint8", "Ernie4_5ForCausalLM", "26,080", "LORA", "r=8"):
        assert shown in text
    rows = browser.get("/models?q=q8", headers={"hx-request": "true"}).text
    assert "bases/q8" in rows
    assert "runs/first" not in rows


def test_a_model_tells_where_it_came_from_and_what_can_be_done(browser, models):
    text = browser.get("/models/show?path=runs/first/model").text
    assert '<span class="muted">method</span> sft' in text
    assert 'action="/models/do/quantize"' in text
    packed = browser.get("/models/show?path=bases/q8").text
    assert 'action="/models/do/export"' in packed
    assert 'action="/models/do/quantize"' not in packed
    # what the commands would refuse is not offered
    assert 'value="fastdeploy"' in packed
    assert 'value="gguf"' not in packed
    assert text.index('value="wint8"') < text.index('label="With calibration data"') < text.index('value="gptq"')
    assert 'value="bf16"' not in text
    assert re.findall(r"<option[^>]*>(\w+)</option>", text.split('id="check-to"')[1].split("</select>")[0]) == [
        "fastdeploy",
        "hf",
    ]
    adapter = browser.get("/models/show?path=runs/group/second/adapter").text
    assert 'action="/models/do/merge"' in adapter
    assert "/chat?model=" not in adapter


BUTTONS = [
    ("quantize", "runs/first/model", {"to": "wint8", "name": "q"}, "quantize PLACE --to wint8 --out runs/models/q"),
    ("export", "bases/q8", {"to": "hf", "dtype": "float32", "name": "e"},
     "export PLACE --to hf --dtype float32 --out runs/models/e"),
    ("merge", "runs/group/second/adapter", {"name": "m", "base": "runs/first/model"},
     "merge PLACE --base runs/first/model --out runs/models/m"),
    ("check", "bases/q8", {"to": "hf"}, "model check PLACE --contract hf"),
]  # fmt: skip


def test_a_model_of_a_hub_is_downloaded_into_the_list(browser, models, monkeypatch, tmp_path):
    from hub_server import Hub

    hub = Hub()
    files = {path.name: path.read_bytes() for path in (models.root / "first/model").iterdir()}
    hub.add("models", "baidu/tiny", files)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    try:
        browser.post("/models/pull", data={"model": "hf:baidu/tiny"})
        (task,) = models.tasks.all()
        assert list(task.argv) == [*ERNIE, *["model", "pull", "hf:baidu/tiny", "--out", "runs/models/tiny"]]
        assert f'id="{task.name}"' in browser.get("/models").text
        while models.tasks.get(task.name).state not in ("done", "failed", "lost"):
            models.tasks.advance()
            time.sleep(0.1)
        assert models.tasks.get(task.name).state == "done", task.output()
    finally:
        hub.close()
    text = browser.get("/models").text
    assert text.count('href="/models/show?path=runs/models/tiny"') == 2  # in the list, and below the command
    assert (models.root / "models/tiny/model.safetensors").read_bytes() == files["model.safetensors"]
    assert browser.post("/models/pull", data={"model": "hf:baidu/tiny"}).status_code == 400  # the name is taken


@pytest.mark.parametrize(
    "name", ["hf:baidu/tiny?endpoint=http://evil.example", "--out", "hf:a/..", "baidu/tiny", "hf:a/b/c", ""]
)
def test_what_is_no_name_on_a_hub_is_not_asked_for(browser, models, name):
    assert browser.post("/models/pull", data={"model": name}).status_code == 400
    assert not models.tasks.all()


@pytest.mark.parametrize(("action", "place", "given", "expected"), BUTTONS)
def test_a_button_is_a_command_in_the_queue(browser, models, monkeypatch, action, place, given, expected):
    monkeypatch.setattr(models.tasks, "advance", lambda: None)  # it waits
    answer = browser.post(f"/models/do/{action}", data={"path": place, **given})
    (task,) = models.tasks.all()
    assert list(task.argv) == [*ERNIE, *expected.replace("PLACE", place).split()]
    assert dict(answer.url.params) == {"path": place}
    assert f'id="{task.name}"' in answer.text  # how far it is
    assert f"{action} {place}" in browser.get("/queue").text


def test_the_page_of_a_model_shows_how_far_commands_are(browser, models, monkeypatch):
    monkeypatch.setattr(models.tasks, "_start", lambda task: None)
    browser.post("/models/do/quantize", data={"path": "runs/first/model", "to": "wint8", "name": "q"})
    (task,) = models.tasks.all()
    part = models.root / "models/q"
    part.mkdir(parents=True)
    (part / "weights.part").write_bytes(bytes(2048))
    (task.directory / "output.log").write_text("layer 1\nlayer 2\n")
    going = browser.get("/models/works?path=runs/first/model").text
    assert "2.0 KiB written" in going
    assert "layer 2" in going
    assert "every 1s" in going
    write_model(models.root / "models/q/x").rename(models.root / "models/y")
    shutil.rmtree(part)
    (models.root / "models/y").rename(part)
    (task.directory / "exit.json").write_text('{"code": 0, "time": 2}')
    models.models.forget()
    done = browser.get("/models/works?path=runs/first/model").text
    assert 'href="/models/show?path=runs/models/q"' in done
    assert "every 1s" not in done
    assert browser.get("/models/works?path=/etc").status_code == 400


def test_adapters_alone_are_listed(browser, models):
    found = browser.get("/models?kind=adapter", headers={"hx-request": "true"}).text
    assert "runs/group/second/adapter" in found
    assert "bases/q8" not in found


@pytest.mark.parametrize("given", [
    {"path": "runs/first"}, {"path": "/etc"}, {"path": "runs/first/../first/model"}, {"to": "--calib"}, {"to": "nothing"},
    {"name": "../x"}, {"name": ""}, {"name": "-x"}, {"name": "taken"}, {"calib": "/etc/passwd"}, {"calib": "runs/.web/token"},
    {"calib": "../outside.jsonl"}, {"calib": "runs/.web/x.jsonl"},
])  # fmt: skip
def test_what_is_no_model_plugin_name_or_file_is_refused(browser, models, given):
    (models.root / "models/taken").mkdir(parents=True)
    (models.state / "x.jsonl").touch()
    (models.home.parent / "outside.jsonl").touch()
    data = {"path": "runs/first/model", "to": "wint8", "name": "q", **given}
    assert browser.post("/models/do/quantize", data=data).status_code == 400
    assert not models.tasks.all()


def test_no_name_of_a_file_is_an_option_html_or_an_error(browser, models, monkeypatch):
    monkeypatch.setattr(models.tasks, "advance", lambda: None)
    write_model(models.home / "--base=x")
    write_model(models.home / "<img src=x onerror=alert(1)>", model_type="ernie4_5")
    (models.home / "bytes").mkdir()
    for name in (b"\xff", b"\xff.jsonl"):
        shutil.copytree(models.home / "bases/q8", os.fsdecode(os.fsencode(models.home) + b"/bytes/" + name))
    models.models.forget()
    assert {"./--base=x", "<img src=x onerror=alert(1)>"} < set(models.models.found())
    for page in ("models", "chat", "evaluate", "new"):
        text = browser.get(f"/{page}")
        assert (text.status_code, "<img src=x" in text.text, "&lt;img src=x" in text.text) == (200, False, True), page
    browser.post("/models/do/merge", data={"path": "./--base=x", "name": "m"})
    (task,) = models.tasks.all()
    assert task.argv[len(ERNIE) :] == ("merge", "./--base=x", "--out", "runs/models/m")
    # another task is going to write there
    assert browser.post("/models/do/merge", data={"path": "bases/q8", "name": "m"}).status_code == 400
    long = {"model": "bases/q8", "tasks": "a", "data": "x" * 300 + ".jsonl", "include": "x" * 300}
    assert browser.post("/evaluate/start", data=long).status_code == 400
    assert browser.post("/evaluate/start", data={**long, "tasks": ""}).status_code == 400


def test_other_directories_are_roots_where_they_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "here/model")
    write_model(tmp_path / "there/deep/model")
    (tmp_path / "there/link").symlink_to(tmp_path / "here")
    site = Site(tmp_path / "runs", models=[tmp_path / "there"])
    assert list(site.models.found()) == ["there/deep/model"]
    write_model(tmp_path / "there/new")
    assert site.models.describe("there/new").numbers == "bfloat16"  # a place that is asked for is looked for again
    shutil.rmtree(tmp_path / "there/deep")
    shutil.rmtree(tmp_path / "there/new")
    site.models.forget()
    assert not site.models.found()
