"""``ernie config import`` and old files in the commands that take settings."""

import json
from pathlib import Path

import pytest

from erniecore.cli.app import main
from erniecore.config import yaml
from erniecore.config.compose import load

CONFIGS = Path(__file__).parents[4] / "tests/fixtures/erniekit/configs"
SFT = CONFIGS / "ERNIE-4.5-0.3B/sft/run_sft_lora_8k.yaml"


def run(capsys, *args, code=0):
    assert main([str(word) for word in args]) == code, capsys.readouterr()
    return capsys.readouterr()


def write(tmp_path, text, name="old.yaml"):
    (tmp_path / name).write_text(text)
    return tmp_path / name


OLD = "model_name_or_path: baidu/ERNIE-4.5-0.3B-Paddle\nstage: SFT\ndo_train: True\n"


def test_json_holds_mapped_dropped_and_unknown(capsys):
    report = json.loads(run(capsys, "config", "import", SFT, "--json").out)
    assert report["unknown"] == []
    assert report["mapped"]["learning_rate"] == "train.learning_rate"
    assert report["mapped"]["lora_rank"] == "adapter.rank"
    assert "kernels" in report["dropped"]["fuse_rope"]


def test_the_written_file_is_ours_and_says_the_same(capsys, tmp_path):
    new = tmp_path / "new.yaml"
    run(capsys, "config", "import", SFT, "--out", new)
    assert "ok (model ernie45" in run(capsys, "config", "check", new).out
    assert load(new, environ={}).settings == load(SFT, environ={}).settings


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda p: str(p.relative_to(CONFIGS)))
def test_every_published_file_is_written_as_ours(capsys, tmp_path, path):
    """What cannot be loaded today says which plugin it lacks, and nothing else."""
    new = tmp_path / "new.yaml"
    run(capsys, "config", "import", path, "--out", new)
    content = yaml.parse(new.read_text(), "new.yaml").data
    missing = content["model"]["name"] == "paddleocr-vl"
    assert main(["config", "check", str(new)]) == (2 if missing else 0)
    assert ("error ERN-P002" in capsys.readouterr().err) == missing


def test_settings_of_one_plugin_stay_together(capsys, tmp_path):
    """Two keys of one callback are one mapping of the written file."""
    (tmp_path / "dataset_info.json").write_text('{"mine": {"file_name": "mine.json"}}')
    (tmp_path / "mine.json").write_text('[{"instruction": "a", "output": "b"}]')
    keys = ["model_name_or_path: m", "stage: sft", "do_train: true", f"dataset_dir: {tmp_path}", "dataset: mine"]
    keys += ["eval_dataset: mine", "eval_strategy: steps", "eval_steps: 1", "predict_with_generate: true"]
    (tmp_path / "lf.yaml").write_text("\n".join([*keys, "max_new_tokens: 8", "max_steps: 2", ""]))
    assert main(["config", "import", str(tmp_path / "lf.yaml"), "--out", str(tmp_path / "ours.yaml")]) == 0
    written = yaml.parse((tmp_path / "ours.yaml").read_text(), "ours.yaml").data
    assert written["callbacks"] == {"eval-generate": {"metrics": ["exact-match"], "max_new_tokens": 8}}


def test_a_file_that_is_there_is_kept(capsys, tmp_path):
    new = write(tmp_path, "mine", "new.yaml")
    assert "is there already" in run(capsys, "config", "import", SFT, "--out", new, code=2).err
    assert new.read_text() == "mine"


def test_overrides_are_keys_of_erniekit(capsys, tmp_path):
    args = ["max_steps=7", "output_dir=./o", "lora_rank=4", "seed=null"]
    report = json.loads(run(capsys, "config", "import", SFT, *args, "--json").out)
    assert report["settings"]["train.max_steps"] == 7
    assert report["settings"]["run.out"] == "./o"
    assert report["settings"]["adapter.alpha"] == 8.0
    assert "run.seed" not in report["settings"]


def test_json_files_too(capsys, tmp_path):
    old = write(tmp_path, json.dumps({"stage": "SFT", "learning_rate": 1e-5, "lerning_rate": 3}, indent=1), "old.json")
    report = json.loads(run(capsys, "config", "import", old, "--json", code=2).out)
    assert report["mapped"]["learning_rate"] == "train.learning_rate"
    assert report["unknown"] == ["lerning_rate"]
    assert "old.json:4: lerning_rate" in run(capsys, "config", "import", old, code=2).err


def test_unknown_keys_end_with_2_and_write_nothing(capsys, tmp_path):
    old = write(tmp_path, OLD + "learning_rte: 1\nqqqq: 2\n")
    shown = run(capsys, "config", "import", old, "--out", tmp_path / "new.yaml", code=2)
    assert "old.yaml:4: learning_rte: ERNIEKit has no such key and ignores it; did you mean learning_rate?" in shown.err
    assert "old.yaml:5: qqqq" in shown.err
    assert not (tmp_path / "new.yaml").exists()
    report = json.loads(run(capsys, "config", "import", old, "--json", code=2).out)
    assert report["unknown"] == ["learning_rte", "qqqq"]
    assert report["suggestions"] == {"learning_rte": "learning_rate"}


def test_unknown_keys_can_be_left_out(capsys, tmp_path):
    old = write(tmp_path, OLD + "qqqq: 2\n")
    run(capsys, "config", "import", old, "--allow-unknown", "--out", tmp_path / "new.yaml")
    assert load(tmp_path / "new.yaml", environ={}).settings.plugins["method"] == "sft"


def test_values_that_mean_nothing_name_their_line(capsys, tmp_path):
    old = write(tmp_path, OLD + "compute_type: int3\nmax_steps: many\n")
    err = run(capsys, "config", "import", old, code=2).err
    assert "ERN-C030" in err
    assert "old.yaml:4: compute_type: must be one of bf16" in err
    assert "old.yaml:5: max_steps: must be a whole number (got 'many')" in err
    err = run(capsys, "config", "import", old, "max_steps=3", "compute_type=x", code=2).err
    assert "command line: compute_type=x: must be one of" in err


def test_settings_of_ours_need_no_import(capsys, tmp_path):
    new = write(tmp_path, "model: ernie45\nmethod: sft\n")
    assert "has settings of erniecore already" in run(capsys, "config", "import", new, code=2).err


def test_the_table_names_values_reasons_and_defaults(capsys):
    out = run(capsys, "config", "import", SFT).out
    assert "adapter.rank = 32" in out
    assert "fuse_rope" in out
    assert "effective" in out


def test_another_device_keeps_its_precision(capsys):
    args = ["config", "import", SFT, "--json"]
    assert json.loads(run(capsys, *args).out)["settings"]["train.precision"] == "float32"
    report = json.loads(run(capsys, *args, "--device", "some-card").out)
    assert report["settings"]["train.precision"] == "bfloat16"
    assert report["settings"]["device.name"] == "some-card"


def test_a_run_is_converted_for_its_device(capsys):
    shown = json.loads(run(capsys, "config", "show", SFT, "--device", "cuda", "--json").out)
    assert shown["train.precision"]["value"] == "bfloat16"
    assert shown["device.name"] == {"value": "cuda", "source": "command line"}
    shown = json.loads(run(capsys, "config", "show", SFT, "adapter=null", "--json").out)
    assert "adapter.name" not in shown


def test_keys_of_erniekit_are_explained(capsys):
    every = json.loads(run(capsys, "config", "explain", "lora_rank", "--json").out)
    (found,) = (e for e in every if e["owner"].startswith("ERNIEKit"))
    assert found["description"] == "becomes adapter.rank"
    assert "becomes nothing" in run(capsys, "config", "explain", "fuse_rope").out


def test_old_files_are_settings_everywhere(capsys, tmp_path):
    shown = json.loads(run(capsys, "config", "show", SFT, "train.epochs=2", "max_steps=5", "--json").out)
    assert shown["adapter.rank"] == {"value": 32, "source": f"{SFT}:13"}
    assert shown["train.epochs"] == {"value": 2.0, "source": "command line"}
    assert shown["train.max_steps"] == {"value": 5, "source": "command line"}
    assert shown["adapter.alpha"]["source"] == f"{SFT} (default of lora_alpha)"


def test_bad_values_of_ours_name_the_old_key(capsys, tmp_path):
    old = write(tmp_path, OLD + "num_train_epochs: 1\nadam_beta1: 2\n")
    err = run(capsys, "config", "check", old, code=2).err
    assert "old.yaml:5: optimizer.beta1 (from adam_beta1): must be < 1 (got 2.0)" in err


def test_dry_run_of_a_published_model_that_is_not_here(capsys):
    plan = json.loads(run(capsys, "run", SFT, "--dry-run", "--json").out)
    assert plan["parameters"]["total"] > 360e6
    assert plan["parameters"]["adapted"]
    assert any("the plan of the recipe ernie45/0.3b" in text for text in plan["notes"])
    out = run(capsys, "run", SFT, "--dry-run").out
    assert "note    fine_tuning" not in out
    assert "is an ERNIEKit file" in out


def test_a_run_says_what_to_fetch(capsys, tmp_path):
    err = run(capsys, "run", SFT, "--out", tmp_path / "o", code=5).err
    assert "no such model directory, and nothing is downloaded" in err
    assert f"{SFT}:11: model.path" in err
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("name", "command"),
    [
        (
            "ERNIE-4.5-0.3B/run_eval.yaml",
            "ernie eval --model baidu/ERNIE-4.5-0.3B-Paddle --data ./examples/data/sft-eval.jsonl",
        ),
        ("ERNIE-4.5-0.3B/run_chat.yaml", "ernie chat --model baidu/ERNIE-4.5-0.3B-Paddle"),
        ("ERNIE-4.5-21B-A3B/run_export.yaml", "ernie merge ./output --base baidu/ERNIE-4.5-21B-A3B-Paddle"),
    ],
)
def test_files_for_other_commands_say_which(capsys, name, command):
    err = run(capsys, "run", CONFIGS / name, "--dry-run", code=2).err
    assert "ERN-C032" in err
    assert command in err


def test_plugins_that_are_not_here_are_named(capsys, monkeypatch):
    monkeypatch.setenv("ERNIE_PLUGINS", "ernie45,sft,lora,erniekit,hybrid")
    args = ("compute_type=fp8", "--dry-run")
    err = run(capsys, "run", CONFIGS / "ERNIE-4.5-0.3B/sft/run_sft_wint8mix_lora_8k.yaml", *args, code=2).err
    assert "no quantizer plugin 'fp8-qat' is installed" in err
    assert "(from compute_type)" in err
    assert "it comes with erniecore-fp8-qat" in err


def test_erniekit_arguments_need_no_plugin(capsys):
    path = CONFIGS / "ERNIE-4.5-21B-A3B/sft/run_sft_8k.yaml"
    plan = json.loads(run(capsys, "run", path, "tensor_parallel_degree=1", "--dry-run", "--json").out)
    assert plan["model"] == "ernie45-moe"
    parallel = json.loads(run(capsys, "run", path, "--dry-run", "--json").out)
    assert parallel["model"] == "ernie45-moe"


def test_unknown_keys_stop_a_run(capsys, tmp_path):
    old = write(tmp_path, OLD + "learning_rte: 1\n")
    err = run(capsys, "run", old, "--dry-run", code=2).err
    assert "ERN-C031" in err
    assert "did you mean learning_rate?" in err
    assert "qq=1: ERNIEKit has no such key" in run(capsys, "run", old, "qq=1", "--dry-run", code=2).err


def test_a_key_that_the_toolkit_ignores_stops_nothing_and_is_said(capsys, tmp_path):
    old = write(tmp_path, OLD + "eval_iters: 10\n")
    shown = run(capsys, "run", old, "--dry-run").out
    assert "eval_iters: ERNIEKit has no such key and ignores it" in " ".join(shown.split())


def test_a_json_file_of_settings_runs(capsys, tmp_path):
    old = write(tmp_path, json.dumps({"model_name_or_path": "baidu/ERNIE-4.5-0.3B-PT", "do_train": True}), "old.json")
    assert json.loads(run(capsys, "run", old, "--dry-run", "--json").out)["model"] == "ernie45"
    rows = write(tmp_path, '[{"src": "a", "tgt": "b"}]', "rows.json")
    assert "is a data file" in run(capsys, "run", rows, code=2).err
