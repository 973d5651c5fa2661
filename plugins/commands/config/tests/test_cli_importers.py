"""Which importer a file gets: decided by its keys, or said with `--from`."""

import json
import sys
from pathlib import Path

import pytest
from erniecore_catalog import install_command

from erniecore.cli.app import main
from erniecore.config.compose import load

ROOT = Path(__file__).parents[4]
LLAMA = ROOT / "plugins/importers/llamafactory/tests/fixtures"
ERNIEKIT = ROOT / "tests/fixtures/erniekit/configs"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A working directory with LLaMA-Factory's ``data/dataset_info.json``."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/dataset_info.json").write_bytes((LLAMA / "dataset_info.json").read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys, *args, code=0):
    assert main([str(word) for word in args]) == code, capsys.readouterr()
    return capsys.readouterr()


@pytest.mark.parametrize("path", sorted(LLAMA.glob("*.yaml")), ids=lambda path: path.stem)
def test_examples_of_llamafactory_are_recognized(capsys, home, path):
    report = json.loads(run(capsys, "config", "import", path, "--json").out)
    assert report["toolkit"] == "LLaMA-Factory"
    assert report["unknown"] == []


@pytest.mark.parametrize("path", sorted(ERNIEKIT.rglob("*.yaml")), ids=lambda p: str(p.relative_to(ERNIEKIT)))
def test_examples_of_erniekit_are_recognized(capsys, path):
    assert json.loads(run(capsys, "config", "import", path, "--json").out)["toolkit"] == "ERNIEKit"


def test_a_file_that_nobody_knows(capsys, tmp_path, monkeypatch):
    (tmp_path / "x.yaml").write_text("alpha: 1\nbravo: 2\n")
    err = " ".join(run(capsys, "config", "import", tmp_path / "x.yaml", code=2).err.split())
    assert "no installed importer recognizes this file" in err
    assert install_command("erniecore-erniekit") + " for files of erniekit" in err
    monkeypatch.setenv("ERNIE_PLUGINS", "ernie45,sft,formats,config")
    err = " ".join(run(capsys, "config", "import", LLAMA / "train_lora_qwen3_lora_sft.yaml", code=2).err.split())
    assert "importers installed: none" in err
    assert install_command("erniecore-llamafactory") + " for files of llamafactory" in err


def test_the_importer_can_be_named(capsys, home):
    args = ("config", "import", LLAMA / "train_lora_qwen3_lora_sft.yaml", "--json", "--from", "erniekit")
    report = json.loads(run(capsys, *args, code=2).out)
    assert report["toolkit"] == "ERNIEKit"
    assert "finetuning_type" in report["unknown"]
    assert "no importer plugin 'erniekitt'" in run(capsys, *args[:-1], "erniekitt", code=2).out


def test_a_file_that_two_importers_know_equally_well(capsys, tmp_path):
    (tmp_path / "x.yaml").write_text("output_dir: out\nmax_seq_len: 64\ncutoff_len: 64\n")
    err = " ".join(run(capsys, "config", "import", tmp_path / "x.yaml", code=2).err.split())
    assert "several importers recognize this file" in err
    assert "--from erniekit or --from llamafactory" in err
    assert "several importers" in run(capsys, "run", tmp_path / "x.yaml", "--dry-run", code=2).err


def test_files_of_ours_load_no_importer(tmp_path):
    (tmp_path / "x.yaml").write_text("model: ernie45\nmethod: sft\ntrain: {max_steps: 3}\n")
    for name in [name for name in sys.modules if name.startswith(("erniecore_erniekit", "erniecore_llamafactory"))]:
        del sys.modules[name]
    assert load(tmp_path / "x.yaml", environ={}).settings.train.max_steps == 3
    assert not [name for name in sys.modules if name.startswith(("erniecore_erniekit", "erniecore_llamafactory"))]


def test_another_family_is_refused_by_its_name_alone(capsys, home):
    args = ("run", LLAMA / "train_lora_qwen3_lora_sft.yaml", "--dry-run")
    err = " ".join(run(capsys, *args, code=5).err.split())
    assert "no such model directory" in err
    assert "Qwen/Qwen3-4B-Instruct-2507 is no directory here" in err
    args += ("model.name=ernie45", "model.size=0.3b", "model.path=")
    assert json.loads(run(capsys, *args, "--json").out)["model"] == "ernie45"


def test_a_published_model_is_planned(capsys, home):
    args = ("run", LLAMA / "train_lora_qwen3_lora_sft.yaml", "model_name_or_path=baidu/ERNIE-4.5-0.3B-PT", "--dry-run")
    plan = json.loads(run(capsys, *args, "--json").out)
    assert plan["parameters"]["total"] > 360e6
    assert any("the plan of the recipe ernie45/0.3b" in text for text in plan["notes"])


def test_what_is_written_is_read_again(capsys, home):
    old, new = LLAMA / "train_lora_qwen3_lora_dpo.yaml", home / "new.yaml"
    args = (old, "model_name_or_path=baidu/ERNIE-4.5-0.3B-PT")
    run(capsys, "config", "import", *args, "--out", new)
    assert load(new, environ={}).settings == load(old, [args[1]], environ={}).settings


def test_keys_of_both_are_explained(capsys):
    found = json.loads(run(capsys, "config", "explain", "lora_rank", "--json").out)
    assert [e["owner"].split()[0] for e in found] == ["ERNIEKit", "LLaMA-Factory"]


def test_unknown_arguments_end_with_2(capsys, home):
    err = run(capsys, "config", "import", LLAMA / "train_lora_qwen3_lora_sft.yaml", "lora_rnk=4", code=2).err
    assert "lora_rnk=4: LLaMA-Factory has no such argument; did you mean lora_rank?" in err
