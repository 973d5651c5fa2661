"""Models and data sets of a hub on localhost, fetched with the real client."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from asked_hosts import hosts_asked

from erniecore import codes
from erniecore.cli.app import main
from erniecore.config.core import Source
from erniecore.config.hubs import hub_of
from erniecore.data.file_types import located
from erniecore.data.reader import read_rows
from erniecore.data.sources import resolve
from erniecore.errors import CheckpointError, DataError, EnvironmentFault, Exit, PluginNotFound, UsageError

MODEL = {
    "config.json": b'{"model_type": "ernie4_5"}',
    "model.safetensors": bytes(range(256)) * 4000,
    "tokenizer.model": b"spm",
    "chat_template.jinja": b"{{ messages }}",
    "LICENSE": b"Apache-2.0",
    "pytorch_model.bin": b"\x80\x04pickle",
    "modeling_ernie.py": b"raise SystemExit('code of a repository ran')",
    "onnx/model.safetensors": b"other",
}
ROWS = b'{"instruction": "q", "output": "a"}\n'


def pull(*args):
    return main(["model", "pull", *map(str, args), "--json"])


def pulled(capsys, *args):
    assert pull(*args) == 0
    return json.loads(capsys.readouterr().out)


def test_a_model_is_what_describes_it_and_safetensors(hub, capsys):
    commit = hub.add("models", "baidu/tiny", MODEL)
    report = pulled(capsys, "hf:baidu/tiny")
    assert report["name"] == f"hf:baidu/tiny@{commit}"
    assert set(report["files"]) == {
        "config.json",
        "model.safetensors",
        "tokenizer.model",
        "chat_template.jinja",
        "LICENSE",
    }
    assert set(hub.fetched()) == set(report["files"])
    directory = Path(report["path"])
    assert all((directory / n).read_bytes() == MODEL[n] and not (directory / n).is_symlink() for n in report["files"])


def test_what_is_here_is_not_asked_for_again_until_it_is_pulled(hub, capsys):
    first = hub.add("models", "baidu/tiny", MODEL)
    before = pulled(capsys, "hf:baidu/tiny")
    second = hub.add("models", "baidu/tiny", {**MODEL, "config.json": b'{"model_type": "ernie4_5", "a": 1}'})
    hub.requests.clear()
    plugin = hub_of("hf:baidu/tiny")
    name = plugin.ernie_pin_revision("hf:baidu/tiny", True)
    assert (name, str(plugin.ernie_pull_model(name, True))) == (f"hf:baidu/tiny@{first}", before["path"])
    assert hub.requests == []
    assert pulled(capsys, "hf:baidu/tiny")["name"] == f"hf:baidu/tiny@{second}"
    assert plugin.ernie_pin_revision("hf:baidu/tiny", True) == f"hf:baidu/tiny@{second}"
    assert pulled(capsys, f"hf:baidu/tiny@{first}")["path"] == before["path"]


def ranges(hub):
    return [r for method, path, r in hub.requests if method == "GET" and path.endswith("/model.safetensors")]


def test_a_cut_connection_goes_on_where_it_stopped(hub, capsys, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 100_000)
    hub.add("models", "baidu/tiny", MODEL)
    hub.cuts["model.safetensors"] = 350_000
    report = pulled(capsys, "hf:baidu/tiny")
    assert (Path(report["path"]) / "model.safetensors").read_bytes() == MODEL["model.safetensors"]
    assert [r.partition("-")[0] for r in ranges(hub)] == ["", "bytes=300000"]


def part_of(report, content):
    """As if the process had ended when it had this much of the weights."""
    directory = Path(report["path"])
    (directory / "model.safetensors").unlink()
    (directory / ".parts" / "model.safetensors").write_bytes(content)


def test_a_command_that_was_killed_continues(hub, capsys):
    hub.add("models", "baidu/tiny", MODEL)
    report = pulled(capsys, "hf:baidu/tiny")
    part_of(report, MODEL["model.safetensors"][:1000])
    hub.requests.clear()
    again = pulled(capsys, report["name"])
    assert (hub.fetched(), ranges(hub)[0].partition("-")[0]) == (["model.safetensors"], "bytes=1000")
    assert (Path(again["path"]) / "model.safetensors").read_bytes() == MODEL["model.safetensors"]


def test_content_that_the_hub_did_not_announce_is_refused_and_fetched_again(hub, capsys):
    hub.add("models", "baidu/tiny", MODEL)
    report = pulled(capsys, "hf:baidu/tiny")
    part_of(report, b"x" * 1000)
    assert pull("hf:baidu/tiny") == Exit.CHECKPOINT
    assert "ERN-K002" in capsys.readouterr().out
    assert pulled(capsys, "hf:baidu/tiny") == report


def test_tokens_are_asked_for_and_used(hub, capsys, monkeypatch):
    hub.add("models", "baidu/secret", MODEL)
    hub.private["baidu/secret"] = "hf_right"
    assert pull("hf:baidu/secret") == Exit.USAGE
    assert "HF_TOKEN" in capsys.readouterr().out
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert pulled(capsys, "hf:baidu/secret")["files"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hf:baidu/none", "no such model"),
        ("hf:baidu/tiny@gone", "no such revision"),
        ("hf:baidu", "no name on a hub"),
        ("hf:baidu/../../etc", "no name on a hub"),
        ("hf:baidu/tiny:train", "no name on a hub"),
    ],
)
def test_names_that_lead_nowhere(hub, capsys, name, said):
    hub.add("models", "baidu/tiny", MODEL)
    assert pull(name) == Exit.USAGE
    assert said in capsys.readouterr().out


def test_a_hub_that_is_not_there(hub, monkeypatch, capsys):
    hub.close()
    assert pull("hf:baidu/tiny") == Exit.ENVIRONMENT
    assert "HF_ENDPOINT" in capsys.readouterr().out


def test_another_host_by_the_name_gets_no_token(hub, monkeypatch, tmp_path, capsys):
    """What a settings file names is asked without the user's token, which is for the user's own host."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    host = f"?endpoint={hub.url}"
    commit = hub.add("models", "baidu/tiny", MODEL)
    report = pulled(capsys, f"hf:baidu/tiny{host}")
    assert report["name"] == f"hf:baidu/tiny@{commit}{host}"
    assert hub_of(report["name"]).ernie_pin_revision(report["name"], True) == report["name"]
    hub.private["baidu/tiny"] = "hf_right"
    assert pull(f"hf:baidu/tiny{host}") == Exit.USAGE
    hub.add("datasets", "me/rows", {"data/train.jsonl": ROWS * 3})
    assert len(list(read_rows(located(f"hf:me/rows:train{host}")))) == 3
    assert len(list(read_rows(located(f"hf:me/rows/data/t?ain.jsonl{host}/")))) == 3
    capsys.readouterr()
    assert pull("hf:baidu/tiny?endpoint=file:///etc") == Exit.USAGE
    assert "no name on a hub" in capsys.readouterr().out


def test_no_other_host_is_asked_than_the_one_that_is_named(hub, tmp_path):
    """The library would ask the public hub for a list, to say what this process is started by."""
    hub.add("models", "baidu/tiny", MODEL)
    caches = {"XDG_CACHE_HOME": str(tmp_path / "new"), "HF_HOME": str(tmp_path / "new-hf"), "HF_ENDPOINT": None}
    code = "from erniecore.cli.app import main\nassert main(['model', 'pull', sys.argv[1]]) == 0"
    asked = hosts_asked(code, f"hf:baidu/tiny?endpoint={hub.url}", home=tmp_path, environ=caches)
    assert set(asked) == {"asked for 127.0.0.1", "connected to 127.0.0.1"}


def test_of_several_processes_one_asks(hub):
    """As ranks do that no launcher of ours has started."""
    code = "import sys; from erniecore_hubs.pulling import pull_model; pull_model(sys.argv[1])"
    asked = {}
    for count in (1, 3):
        hub.add("models", f"baidu/for{count}", MODEL)
        hub.requests.clear()
        together = [subprocess.Popen([sys.executable, "-c", code, f"hf:baidu/for{count}"]) for _ in range(count)]
        assert [process.wait() for process in together] == [0] * count
        # the library asks hubs for other things now and then
        asked[count] = [method for method, path, _ in hub.requests if f"baidu/for{count}" in path]
    assert asked[1] == asked[3] != []


def test_pickles_are_no_weights(hub):
    hub.add("models", "baidu/old", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    plugin = hub_of("hf:baidu/old")
    with pytest.raises(CheckpointError, match="pickles") as e:
        plugin.ernie_pull_model(plugin.ernie_pin_revision("hf:baidu/old", True), True)
    assert e.value.code == "ERN-K010"
    assert hub.fetched() == []


def test_a_hub_cannot_write_elsewhere(hub):
    hub.add("models", "baidu/evil", {**MODEL, "../../evil.json": b"x"})
    with pytest.raises(UsageError, match="no repository has"):
        hub_of("hf:baidu/evil").ernie_pull_model("hf:baidu/evil", True)


def test_splits_files_and_patterns_of_a_data_set(hub):
    files = {
        "README.md": b"# about",
        "data/train-00000-of-00001.jsonl": ROWS * 3,
        "data/test-00000-of-00001.jsonl": ROWS,
    }
    commit = hub.add("datasets", "me/rows", files)
    assert len(list(read_rows(located("hf:me/rows:train")))) == 3
    assert hub.fetched() == ["train-00000-of-00001.jsonl"]
    assert len(list(read_rows(located("hf:me/rows/data/test-00000-of-00001.jsonl")))) == 1
    assert len(list(read_rows(located("hf://me/rows/data/test-*.jsonl")))) == 1
    with pytest.raises(DataError) as e:
        list(read_rows(located("hf:me/rows")))
    assert e.value.code == codes.WHICH_SPLIT
    (source,) = resolve([Source(path=f"hf:me/rows@{commit}:train")], "auto")
    assert (source.file, source.parser.name) == (f"hf:me/rows@{commit}:train", "alpaca")
    with pytest.raises(DataError, match="no such data file"):
        located("hf:me/rows/data/none.jsonl")


def test_paths_are_no_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hf:a").mkdir()
    (tmp_path / "hf:a" / "b").mkdir()
    for path in ("hf:a/b", "runs/hf:a", "talk:train", "out/model", "/abs/x", "s3://bucket/a"):
        assert hub_of(path) is None


def test_without_the_client_the_error_says_what_to_install(hub, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(EnvironmentFault, match="need huggingface_hub") as e:
        located("hf:me/rows")
    assert "huggingface_hub" in e.value.next


def test_without_the_plugin_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setenv("ERNIE_PLUGINS", "nothing")
    with pytest.raises(PluginNotFound, match="hf"):
        hub_of("hf:me/rows")


@pytest.fixture
def tiny(tmp_path):
    """A model that can be trained, and rows for it."""
    from erniecore_text.training import train

    (tmp_path / "tok").mkdir()
    train(["the quick brown fox jumps over the lazy dog " * 20], 320).save(tmp_path / "tok")
    size = "num_hidden_layers=1,hidden_size=32"
    assert main(["model", "init", "--model", "ernie45", "--tokenizer", "tok", "--out", "m", "--size", size]) == 0
    return tmp_path / "m"


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # of the client's own upload
def test_pull_train_and_push(hub, tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)  # the hub of the tests has LFS alone
    model = hub.add("models", "baidu/tiny", {p.name: p.read_bytes() for p in tiny.iterdir() if p.is_file()})
    data = hub.add("datasets", "me/rows", {"data/train.jsonl": ROWS * 8})
    words = ["--model", "hf:baidu/tiny", "--method", "sft", "--data", "hf:me/rows:train", "--device", "cpu"]
    words += ["--out", "run", "data.max_seq_len=32", "train.max_steps=1", "train.batch_size=2", "log.report=false"]
    assert main(["run", *words]) == 0, capsys.readouterr()
    resolved = (tmp_path / "run" / "resolved.yaml").read_text()
    assert f"hf:baidu/tiny@{model}" in resolved
    assert f"hf:me/rows@{data}:train" in resolved
    hub.requests.clear()
    assert main(["config", "show", "run/resolved.yaml"]) == 0
    assert hub.requests == []
    capsys.readouterr()
    assert main(["export", "run", "--out", "x", "--push", "hf:me/mine", "--json"]) == 0
    pushed = json.loads(capsys.readouterr().out)["pushed"]
    commit = pushed.removeprefix("hf:me/mine@")
    assert hub.repos["models", "me/mine"][commit] == {
        str(p.relative_to(tmp_path / "x")): p.read_bytes() for p in (tmp_path / "x").rglob("*") if p.is_file()
    }
