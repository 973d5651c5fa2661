"""The smallest set that trains, from wheels alone: it trains, stops, resumes and exports, and every command that it lacks says
what to install."""

import json
import re

import pytest
from erniecore_catalog.known import known
from talker import talker as talker  # the fixture

#: what the page about installation names; what they depend on comes along
CHOSEN = ("erniecore", "erniecore-ernie45", "erniecore-sft", "erniecore-formats", "erniecore-export")
#: every command of ours in one process: its name, exit code and what it printed
EACH = """
import contextlib, io, json, sys
from erniecore.cli.app import main
said = {}
for name in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        code = main([*name.split("."), "--help"])
    said[name] = (code, out.getvalue())
print(json.dumps(said))
"""

pytestmark = [pytest.mark.slow, pytest.mark.install]


@pytest.fixture(scope="module")
def environment(wheels, needed, make_environment):
    made = make_environment([wheels[name] for name in needed(CHOSEN)])
    made.variables |= {"NO_COLOR": "1", "COLUMNS": "300"}
    return made


@pytest.fixture(scope="module")
def listed(environment):
    return json.loads(environment.run("ernie", "plugins", "--json"))


def test_only_what_was_chosen_is_listed(environment, listed, needed):
    assert {entry["distribution"] for entry in listed} == set(CHOSEN)
    assert {entry["status"] for entry in listed} == {"ok"}
    table = environment.run("ernie", "plugins")
    assert all(entry["name"] in table for entry in listed)


def test_it_trains_stops_resumes_and_exports(environment, talker, tmp_path):
    words = ("ernie", "run", "--model", talker / "model", "--method", "sft", "--data", talker / "rows.jsonl", "--out", "run",
             "train.max_steps=4", "train.batch_size=2", "data.max_seq_len=96")  # fmt: skip
    environment.run(*words, "run.until=2", cwd=tmp_path, status=75)
    environment.run(*words, cwd=tmp_path)
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "step"] == [1, 2, 3, 4]
    assert len([event for event in events if event["event"] == "run_start"]) == 2
    environment.run("ernie", "export", "run", "--to", "hf", "--out", "exported", cwd=tmp_path)
    assert (tmp_path / "exported" / "config.json").is_file()
    assert list((tmp_path / "exported").glob("*.safetensors"))


def test_every_other_command_says_what_to_install(environment, listed, wheels):
    here = {entry["name"] for entry in listed if entry["kind"] == "command"}
    homes = {name: home for (kind, name), home in known().items() if kind == "command" and name not in here}
    assert len(homes) > 20
    said = json.loads(environment.run("python", "-c", EACH, json.dumps([*homes])))
    for name, (code, text) in said.items():
        assert code == 2, f"{name}: {text}"
        group = name.partition(".")[0]
        asked = group if group in homes else name  # a group that is missing as a whole
        assert f"`ernie {asked.replace('.', ' ')}` is not installed" in text
        # the wheels were named as files; more of them lie in the same directory
        told = re.search(r"next +(\S+(?: -m pip)? install --find-links (\S+) (\S+))", text)
        assert told, text
        assert told[3] == homes[asked]
        assert told[2] == str(wheels["erniecore"].parent)


def test_what_it_told_to_install_can_be_installed(environment):
    text = environment.run("ernie", "model", "init", status=2, stream="stderr")
    told = re.search(r"next +\S.* install (--find-links) (\S+) (\S+)", text)
    environment.install(*told.groups())
    assert "--size" in environment.run("ernie", "model", "init", "--help")
