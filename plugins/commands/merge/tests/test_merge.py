"""Adapters outside a run: who reads a directory, merging into a model directory, and what is refused."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from erniecore_merge import merging
from safetensors.numpy import load_file

import erniecore
from erniecore.api import CheckpointError, NumericsError, UsageError
from erniecore.engine.models import adapters
from erniecore.engine.models.model_files import save_model_directory
from erniecore.errors import PluginNotFound

FIXTURES = Path(__file__).parents[4] / "tests" / "fixtures"
DENSE, MOE = FIXTURES / "models" / "dense", FIXTURES / "models" / "moe"
ADAPTER = FIXTURES / "lora" / "lora"


@pytest.fixture(scope="module")
def merged(tmp_path_factory):
    out = tmp_path_factory.mktemp("merge") / "out"
    return merging.merge_directory(ADAPTER, DENSE, out)


def manifest(directory):
    return json.loads((directory / "erniecore_manifest.json").read_text())["provenance"]


def test_merged_directory_holds_the_golden_weights(merged):
    golden, written = load_file(ADAPTER / "golden.safetensors"), load_file(merged.path / "model.safetensors")
    names = [name.removeprefix("merged.") for name in golden if name.startswith("merged.")]
    assert names
    for name in names:
        np.testing.assert_allclose(written[name], golden[f"merged.{name}"], atol=1e-6, err_msg=name)
    original = load_file(DENSE / "model.safetensors")
    assert set(written) == set(original)
    assert all(np.array_equal(written[n], original[n]) for n in written if n not in names)
    assert 0 < merged.difference < 1e-4


def test_merged_model_answers_as_the_adapter_did(merged):
    golden = load_file(ADAPTER / "golden.safetensors")
    import paddle

    ids = paddle.to_tensor(golden["input_ids"].astype(np.int64))
    for model in (erniecore.load_model(merged.path), erniecore.load_model(DENSE, adapter=ADAPTER)):
        np.testing.assert_allclose(model(ids).numpy(), golden["adapter_logits"], atol=2e-5, rtol=0)


def test_manifest_records_the_merge(merged):
    facts = manifest(merged.path)
    assert facts["merged"] == [merging.fingerprint(ADAPTER)]
    assert (facts["adapter"], facts["base"]) == ("lora", str(DENSE))


def test_the_same_adapter_is_not_merged_again_another_is(merged, tmp_path):
    copy = shutil.copytree(ADAPTER, tmp_path / "copy")
    with pytest.raises(UsageError, match="already"):
        merging.merge_directory(copy, merged.path, tmp_path / "twice")
    second = FIXTURES / "lora" / "rslora"
    done = merging.merge_directory(second, merged.path, tmp_path / "both")
    assert manifest(done.path)["merged"] == [merging.fingerprint(ADAPTER), merging.fingerprint(second)]


def test_base_in_bfloat16_stays_in_bfloat16(tmp_path):
    from erniecore.engine.models.bundles import load_bundle, open_device

    open_device()
    save_model_directory(load_bundle(DENSE).bundle, tmp_path / "base", dtype="bfloat16")
    done = merging.merge_directory(ADAPTER, tmp_path / "base", tmp_path / "out")
    assert done.dtype == "bfloat16"
    assert json.loads((done.path / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_difference_beyond_the_tolerance_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(merging, "TOLERANCE", 1e-12)
    with pytest.raises(NumericsError, match="merged and unmerged model differ"):
        merging.merge_directory(ADAPTER, DENSE, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_adapter_of_another_model_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="does not fit"):
        merging.merge_directory(ADAPTER, MOE, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_base_that_nobody_knows_must_be_named(tmp_path):
    with pytest.raises(UsageError, match="does not say where its base is") as caught:
        merging.merge_directory(ADAPTER, None, tmp_path / "out")
    assert caught.value.next == f"ernie merge {ADAPTER} --base DIR --out DIR"
    assert list(tmp_path.iterdir()) == []


def test_directory_that_is_no_adapter(tmp_path):
    with pytest.raises(UsageError, match="a whole model, not an adapter") as caught:
        adapters.adapter_plugin(DENSE)
    assert str(DENSE) in caught.value.fix
    with pytest.raises(PluginNotFound, match="no installed adapter plugin reads"):
        adapters.adapter_plugin(tmp_path)
    with pytest.raises(UsageError, match="no such adapter directory"):
        adapters.adapter_directory(tmp_path / "missing")


def test_foreign_directories_have_one_reader():
    assert adapters.adapter_plugin(ADAPTER).name == "lora"
    assert adapters.adapter_plugin(FIXTURES / "lora" / "rslora").name == "rslora"


def test_a_merge_opens_the_device_before_paddle(tmp_path):
    """Paddle reads the device's environment when it is imported; notes and warnings would say that it came too late."""
    argv = ["merge", str(ADAPTER), "--base", str(DENSE), "--out", str(tmp_path / "out")]
    command = [sys.executable, "-c", f"from erniecore.cli.app import main; raise SystemExit(main({argv!r}))"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "paddle was imported" not in done.stderr
