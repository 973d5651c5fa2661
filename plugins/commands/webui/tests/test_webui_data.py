"""Files of rows: which are listed, what is said of their rows, uploads, and what is refused."""

import json
import shutil

import pytest
from erniecore_webui import data_files
from erniecore_webui.actions import ERNIE
from erniecore_webui.pages import data as page
from webui_runs import write_model

GOOD = {"messages": [{"role": "user", "content": "copy 12"}, {"role": "assistant", "content": "<b>12</b>"}]}
BAD = {"messages": [{"role": "user", "content": "nobody answers"}]}


@pytest.fixture
def rows(site):
    (site.home / "rows.jsonl").write_text(f"{json.dumps(GOOD)}\n{json.dumps(BAD)}\n")
    site.data.forget()
    return site


def test_files_of_rows_are_listed_and_those_of_runs_and_models_are_not(browser, rows):
    write_model(rows.home / "bases/one")
    (rows.root / "data").mkdir()
    (rows.root / "data" / "more.csv.gz").touch()
    for name in (".hidden.jsonl", "notes.md", "bases/one/extra.jsonl", "runs/first/samples.jsonl"):
        (rows.home / name).write_text("{}")
    (rows.home / "link.jsonl").symlink_to("/etc/hostname")
    assert set(rows.data.found()) == {"rows.jsonl", "runs/data/more.csv.gz"}
    found = browser.get("/data?q=csv", headers={"hx-request": "true"}).text
    assert "more.csv.gz" in found
    assert "rows.jsonl" not in found
    assert "runs/data" in browser.get("/data").text  # where uploads go


def test_each_row_is_checked_by_the_command_and_a_problem_leads_to_its_line(browser, rows):
    found = browser.get("/data/check?path=rows.jsonl").text
    assert "ERN-D035 the last message must be of assistant" in found
    assert 'href="/data/lines?path=rows.jsonl&line=2"' in found
    shown = browser.get("/data/lines?path=rows.jsonl&line=2").text
    assert "nobody answers" in shown
    assert "copy 12" not in shown
    assert "&lt;b&gt;12" in browser.get("/data/lines?path=rows.jsonl").text
    assert not rows.tasks.all()  # asked, not queued
    assert "<dt>Roles</dt>" in browser.get("/data/statistics?path=rows.jsonl").text


def test_samples_show_what_is_learned(browser, rows, talker):
    shutil.copytree(talker / "model", rows.home / "talker")
    rows.models.forget()
    found = browser.get("/data/samples?path=rows.jsonl&model=talker&method=sft&line=1").text
    learned = found.split('<mark class="learned">')[1].split("</mark>")[0]
    assert learned.startswith("&lt;b&gt;12")
    assert "copy 12" in found.split("<mark")[0]
    # the row that gives no sample is told as in a terminal
    assert "ERN-D035" in browser.get("/data/samples?path=rows.jsonl&model=talker&line=2").text


def test_a_large_file_is_checked_in_the_queue(browser, rows, monkeypatch):
    monkeypatch.setattr(page, "AT_ONCE", 10)
    monkeypatch.setattr(rows.tasks, "advance", lambda: None)  # it waits
    assert 'action="/data/check"' in browser.get("/data/lines?path=rows.jsonl").text
    assert browser.get("/data/check?path=rows.jsonl").status_code == 400
    browser.post("/data/check", data={"path": "rows.jsonl", "method": "sft"})
    (task,) = rows.tasks.all()
    command = "data check rows.jsonl --method sft --max-errors 50 --workers 1 --json"
    assert list(task.argv) == [*ERNIE, *command.split()]


@pytest.mark.parametrize("query", [
    "path=/etc/passwd", "path=../outside.jsonl", "path=runs/.web/x.jsonl", "path=link.jsonl", "path=", "path=notes.md",
    "path=rows.jsonl&model=/etc", "path=rows.jsonl&model=--json", "path=rows.jsonl&method=--out", "path=rows.jsonl&line=-1",
    "path=rows.jsonl&line=1e3",
])  # fmt: skip
def test_what_is_no_file_model_method_or_number_is_refused(browser, rows, query):
    (rows.home.parent / "outside.jsonl").touch()
    (rows.state / "x.jsonl").touch()
    (rows.home / "link.jsonl").symlink_to("/etc/hostname")
    write_model(rows.home / "bases/one")
    model = "" if "model=" in query else "&model=bases/one"
    assert browser.get(f"/data/samples?{query}{model}").status_code == 400
    if "&" not in query:
        assert {browser.get(f"/data/{part}?{query}").status_code for part in ("lines", "check", "statistics")} == {400}


@pytest.mark.parametrize("name", ["../x.jsonl", "/x.jsonl", ".x.jsonl", "x.sh", "-x.jsonl", "x y.jsonl", ""])
def test_an_upload_has_a_plain_name(browser, rows, name):
    assert browser.post("/data/upload", content=b"{}", headers={"x-file-name": name}).status_code == 400
    assert not (rows.root / "data").exists()


def test_an_upload_arrives_whole_or_not_at_all(browser, rows, monkeypatch):
    content = b"x" * (3 << 20)  # more than a form may have
    answer = browser.post("/data/upload", content=content, headers={"x-file-name": "big.jsonl"})
    assert answer.json() == {"to": "/data/lines?path=runs%2Fdata%2Fbig.jsonl"}
    assert (rows.root / "data/big.jsonl").read_bytes() == content
    assert "upload runs/data/big.jsonl" in (rows.state / "audit.jsonl").read_text()
    again = browser.post("/data/upload", content=b"other", headers={"x-file-name": "big.jsonl"})
    assert (again.status_code, "taken" in again.text) == (400, True)
    short = {"x-file-name": "short.jsonl", "content-length": "100"}
    assert browser.post("/data/upload", content=b"only this", headers=short).status_code == 400
    monkeypatch.setattr(data_files, "UPLOAD_BYTES", 10)
    assert browser.post("/data/upload", content=b"x" * 11, headers={"x-file-name": "large.jsonl"}).status_code == 400
    assert [path.name for path in (rows.root / "data").iterdir()] == ["big.jsonl"]


def test_an_upload_needs_the_secret_and_its_length(browser, rows):
    headers = {"x-file-name": "a.jsonl"}
    assert browser.post("/data/upload", content=iter([b"{}"]), headers=headers).status_code == 411
    assert browser.post("/data/upload", content=b"{}", headers={**headers, "x-csrf-token": "wrong"}).status_code == 403
    assert not (rows.root / "data").exists()


@pytest.mark.parametrize("path", ["0123456789abcdef/x.png", "../token", "0123456789abcdef/..%2ftoken", "x/y.png"])
def test_only_images_of_samples_are_sent(browser, rows, path):
    assert browser.get(f"/data/seen/{path}").status_code == 404


def test_a_file_of_one_long_line_is_not_held(tmp_path):
    path = tmp_path / "long.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)  # holes
    (line,) = data_files.lines(path, 1, 10)
    assert (len(line.text), line.cut) == (4000, True)


def test_training_begins_with_the_file(browser, rows):
    (rows.home / "odd, name.jsonl").write_text(json.dumps(GOOD))
    shown = browser.get("/new?data=odd, name.jsonl").text
    assert "train: [&#34;odd, name.jsonl&#34;]" in shown
