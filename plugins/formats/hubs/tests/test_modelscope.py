"""Models and data sets of ModelScope's interface on localhost; and what settings and plans fetch of a model."""

import json
from pathlib import Path

import pytest

from erniecore.cli.app import main
from erniecore.config.hubs import hub_of
from erniecore.data.file_types import located
from erniecore.data.reader import read_rows
from erniecore.errors import EnvironmentFault, Exit

MODEL = {
    "config.json": b'{"model_type": "ernie4_5"}',
    "model.safetensors": bytes(range(256)) * 4000,
    "tokenizer.model": b"spm",
    "modeling_ernie.py": b"raise SystemExit('code of a repository ran')",
    "onnx/model.safetensors": b"other",
}
ROWS = b'{"instruction": "q", "output": "a"}\n'


def pull(*args):
    return main(["model", "pull", *map(str, args), "--json"])


def pulled(capsys, *args):
    assert pull(*args) == 0
    return json.loads(capsys.readouterr().out)


def test_a_model_is_pinned_to_the_commit_of_its_newest_file(hub, capsys):
    hub.add("models", "baidu/tiny", MODEL)
    second = hub.add("models", "baidu/tiny", {**MODEL, "config.json": b'{"model_type": "ernie4_5", "a": 1}'})
    report = pulled(capsys, "ms:baidu/tiny")
    assert report["name"] == f"ms:baidu/tiny@{second}"
    assert set(report["files"]) == {"config.json", "model.safetensors", "tokenizer.model"}
    directory = Path(report["path"])
    assert (directory / "model.safetensors").read_bytes() == MODEL["model.safetensors"]
    assert "hubs/ms/" in report["path"]
    hub.requests.clear()
    plugin = hub_of("ms:baidu/tiny")
    name = plugin.ernie_pin_revision("ms:baidu/tiny", True)
    assert str(plugin.ernie_pull_model(name, True)) == report["path"]
    assert hub.requests == []  # what is here is not asked for again


def test_a_cut_connection_goes_on_and_other_content_is_refused(hub, capsys):
    hub.add("models", "baidu/tiny", MODEL)
    hub.cuts["model.safetensors"] = 350_000
    report = pulled(capsys, "ms:baidu/tiny")
    directory = Path(report["path"])
    assert (directory / "model.safetensors").read_bytes() == MODEL["model.safetensors"]
    ranges = [r for _, path, r in hub.requests if path.endswith("/model.safetensors")]
    assert ranges == ["", "bytes=350000-"]
    (directory / "model.safetensors").unlink()
    (directory / ".parts" / "model.safetensors").write_bytes(b"x" * 1000)
    assert pull("ms:baidu/tiny") == Exit.CHECKPOINT
    assert "ERN-K002" in capsys.readouterr().out
    assert pulled(capsys, "ms:baidu/tiny") == report


def test_tokens_names_and_hubs_that_are_not_there(hub, capsys, monkeypatch):
    hub.add("models", "baidu/secret", MODEL)
    hub.private["baidu/secret"] = "ms_right"
    assert pull("ms:baidu/secret") == Exit.USAGE
    assert "MODELSCOPE_API_TOKEN" in capsys.readouterr().out
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "ms_right")
    assert pulled(capsys, "ms:baidu/secret")["files"]
    for name, said in (("ms:baidu/none", "no such model"), ("ms:baidu/secret@gone", "gone"), ("ms:baidu", "no name")):
        assert pull(name) == Exit.USAGE
        assert said in capsys.readouterr().out
    hub.close()
    assert pull("ms:baidu/other") == Exit.ENVIRONMENT
    assert "MODELSCOPE_ENDPOINT" in capsys.readouterr().out


def test_data_sets_of_many_files(hub):
    files = {f"data/train-{n:03d}.jsonl": ROWS for n in range(120)}  # more than one page of the list
    commit = hub.add("datasets", "me/rows", {"README.md": b"# about", "data/test.jsonl": ROWS * 2, **files})
    assert len(list(read_rows(located("ms:me/rows:test")))) == 2
    assert hub.fetched() == ["test.jsonl"]
    assert len(list(read_rows(located("ms:me/rows:train")))) == 120
    assert hub_of("ms:me/rows").ernie_pin_revision("ms:me/rows", False) == f"ms:me/rows@{commit}"


def test_nothing_is_uploaded_and_what_is_missing_is_said(hub, monkeypatch):
    import sys

    with pytest.raises(Exception, match="not uploaded to ModelScope"):
        hub_of("ms:me/mine").ernie_push_model("ms:me/mine", Path())
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(EnvironmentFault, match="need httpx"):
        located("ms:me/rows")


@pytest.mark.parametrize("name", ["hf:baidu/tiny", "ms:baidu/tiny"])
def test_settings_and_plans_fetch_what_describes_a_model(hub, tmp_path, capsys, name):
    """The weights come when a run starts."""
    from erniecore_text.training import train

    (tmp_path / "tok").mkdir()
    train(["the quick brown fox jumps over the lazy dog " * 20], 320).save(tmp_path / "tok")
    size = "num_hidden_layers=1,hidden_size=32"
    assert main(["model", "init", "--model", "ernie45", "--tokenizer", "tok", "--out", "m", "--size", size]) == 0
    commit = hub.add(
        "models", "baidu/tiny", {p.name: p.read_bytes() for p in (tmp_path / "m").iterdir() if p.is_file()}
    )
    (tmp_path / "rows.jsonl").write_bytes(ROWS * 8)
    words = ["--model", name, "--method", "sft", "--data", "rows.jsonl", "--device", "cpu", "data.max_seq_len=32"]
    words += ["train.max_steps=1", "train.batch_size=2", "log.report=false"]
    for command in (["config", "show"], ["plan"], ["run", "--dry-run"]):
        assert main([*command, *words, "--out", "run"] if command[0] == "run" else [*command, *words]) == 0, (
            capsys.readouterr()
        )
        assert "config.json" in hub.fetched()
        assert not [file for file in hub.fetched() if file.endswith(".safetensors")]
    assert main(["run", *words, "--out", "run"]) == 0, capsys.readouterr()
    assert hub.fetched().count("model.safetensors") == 1
    assert f"{name}@{commit}" in (tmp_path / "run" / "resolved.yaml").read_text()
    hub.requests.clear()
    assert main(["run", *words, "--out", "again"]) == 0, capsys.readouterr()
    assert hub.requests == []
