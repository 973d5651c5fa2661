"""``ernie quantize`` of weights that need no calibration: one after another, and behind what a killed command finished."""

import errno
import os
import shutil
import signal

import pytest
from erniecore_checkpoint.safetensors_write import SafetensorsFile
from erniecore_model_init.new_model import init_model
from erniecore_quantize import quantize
from erniecore_quantize.quantize import Data, quantize_directory
from erniecore_text.training import train

from erniecore.__main__ import main
from erniecore.api import CheckpointError, NumericsError
from erniecore.engine.models import quantized_files
from erniecore.engine.models import weights as weight_files
from erniecore.engine.models.bundles import load_bundle

SIZE = (
    "vocab_size=400,hidden_size=32,intermediate_size=64,num_hidden_layers=3,moe_intermediate_size=32,moe_num_experts=4"
)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    home = tmp_path_factory.mktemp("base")
    train(["the quick brown fox jumps over the lazy dog " * 20], 320).save(home)
    return init_model("ernie45-moe", SIZE, home, home / "m", dtype="bfloat16", shard_size="30KB").path


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    """Several files for a tiny model."""
    monkeypatch.setattr(quantized_files, "DEFAULT_SHARD_BYTES", 12_000)


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    """What the command writes that holds the model in memory, and the loss that it measures."""
    out = tmp_path_factory.mktemp("whole") / "w"
    return out, at_once(source, out, "wint4-8", Data(evaluation=[rows_in(out.parent)]))


def rows_in(home, count=4):
    rows = home / "rows.jsonl"
    rows.write_text('{"instruction": "the fox", "output": "jumps over the dog"}\n' * count)
    return str(rows)


def at_once(source, out, to, data=None, overrides=()):
    """With the whole model in memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantized_files, "DEFAULT_SHARD_BYTES", 12_000)
        patch.setattr(quantize, "can_stream", lambda plugin: False)
        return quantize_directory(source, out, to, overrides, data)


def weights(directory):
    return {path.name: path.read_bytes() for path in sorted(directory.glob("weights-*"))}


def in_fork(work):
    """How a fork of this process ends that does ``work``."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def stopped_at(place, monkeypatch, stop):
    """``stop`` is called in place of writing the tensor number ``place``."""
    add, count = SafetensorsFile.add, iter(range(1_000_000))

    def change(file, name, tensor):
        if next(count) == place:
            stop()
        add(file, name, tensor)

    monkeypatch.setattr(SafetensorsFile, "add", change)


def test_layer_by_layer_is_what_the_whole_model_is(source, whole, tmp_path):
    done = quantize_directory(source, tmp_path / "out", "wint4-8", data=Data(evaluation=[rows_in(tmp_path)]))
    assert weights(done.path) == weights(whole[0])
    assert (done.before, done.after) == (whole[1].before, whole[1].after)
    assert done.before.nll
    assert len(weights(done.path)) > 2
    assert [loss._replace(sqnr_db=round(loss.sqnr_db, 6)) for loss in done.layers] == [
        loss._replace(sqnr_db=round(loss.sqnr_db, 6)) for loss in whole[1].layers
    ]
    assert (done.parameters, done.num_bytes) == (whole[1].parameters, whole[1].num_bytes)
    load_bundle(done.path)


@pytest.mark.parametrize("to", ["wint8", "nf4"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_dtype_of_files_gives_the_bytes_of_the_whole_model(source, tmp_path, dtype, to):
    made = init_model("ernie45-moe", SIZE, source.parent, tmp_path / "m", dtype=dtype, shard_size="30KB").path
    streamed = quantize_directory(made, tmp_path / "streamed", to)
    whole = at_once(made, tmp_path / "whole", to)
    assert weights(streamed.path) == weights(whole.path)
    for found, expected in zip(streamed.layers, whole.layers, strict=True):
        assert (found.name, found.largest_error) == (expected.name, expected.largest_error)
        assert found.sqnr_db == pytest.approx(expected.sqnr_db, abs=1e-9)


def test_no_weight_is_ever_in_floating_point(source, tmp_path, monkeypatch):
    """A stack of experts is read matrix by matrix, and what is written as it was comes from the file."""
    filled, place = [], weight_files.place
    monkeypatch.setattr(weight_files, "place", lambda *a: filled.append(a[1].name) or place(*a))
    quantize_directory(source, tmp_path / "out", "wint4-8")
    assert all("e_score_correction_bias" in name or name.endswith("gate.weight") for name in filled), filled


@pytest.mark.parametrize(("place", "kept"), [(0, False), (20, True), (45, True)])
def test_killed_it_goes_on(source, whole, tmp_path, monkeypatch, place, kept):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        stopped_at(place, patch, lambda: os.kill(os.getpid(), signal.SIGKILL))
        assert in_fork(lambda: quantize_directory(source, out, "wint4-8")) == -signal.SIGKILL
    assert not out.exists()
    stamps = {p.name: p.stat().st_mtime_ns for p in (tmp_path / ".unfinished-out").glob("weights-*")}
    done = quantize_directory(source, out, "wint4-8")
    assert weights(out) == weights(whole[0])
    again = [name for name, stamp in stamps.items() if (out / name).stat().st_mtime_ns == stamp]
    assert bool(again) == kept == any("went on behind" in note for note in done.notes)
    assert len(done.layers) == len(whole[1].layers)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_other_settings_begin_anew(source, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        stopped_at(22, patch, lambda: os._exit(9))
        assert in_fork(lambda: quantize_directory(source, out, "wint8")) == 9
    done = quantize_directory(source, out, "wint4")
    assert any("begun anew, as quantizer" in note for note in done.notes)
    assert weights(out) == weights(quantize_directory(source, tmp_path / "other", "wint4").path)


def test_a_damaged_finished_file_is_written_again(source, whole, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        stopped_at(45, patch, lambda: os._exit(9))
        in_fork(lambda: quantize_directory(source, out, "wint4-8"))
    finished = min((tmp_path / ".unfinished-out").glob("weights-*"))
    data = bytearray(finished.read_bytes())
    data[-1] ^= 1
    finished.write_bytes(data)
    quantize_directory(source, out, "wint4-8")
    assert weights(out) == weights(whole[0])


def test_a_full_disk_keeps_what_is_finished(source, whole, tmp_path, monkeypatch):
    def full():
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path))

    before = {path.name: path.read_bytes() for path in source.iterdir()}
    with monkeypatch.context() as patch:
        stopped_at(45, patch, full)
        with pytest.raises(CheckpointError, match="the same command goes on"):
            quantize_directory(source, tmp_path / "out", "wint4-8")
    assert not (tmp_path / "out").exists()
    assert any((tmp_path / ".unfinished-out").glob("weights-*"))
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before
    quantize_directory(source, tmp_path / "out", "wint4-8")
    assert weights(tmp_path / "out") == weights(whole[0])


def test_sigterm_keeps_what_is_finished(source, whole, tmp_path, monkeypatch, capfd):
    out = tmp_path / "out"
    command = ["ernie", "quantize", str(source), "--to", "wint4-8", "--out", str(out)]
    with monkeypatch.context() as patch:
        stopped_at(45, patch, lambda: os.kill(os.getpid(), signal.SIGTERM))
        patch.setattr("sys.argv", command)
        assert in_fork(lambda: os._exit(main())) == 128 + signal.SIGTERM
    assert capfd.readouterr().err.splitlines()[-1] == "stopped by SIGTERM"
    assert not out.exists()
    finished = (tmp_path / ".unfinished-out").glob("weights-*")
    stamps = {path.name: path.stat().st_mtime_ns for path in finished}
    done = quantize_directory(source, out, "wint4-8")
    assert any("went on behind" in note for note in done.notes)
    assert any(path.stat().st_mtime_ns == stamps.get(path.name) for path in out.glob("weights-*"))
    assert weights(out) == weights(whole[0])


def test_a_source_that_is_truncated_meanwhile_is_an_error(source, whole, tmp_path, monkeypatch):
    """Not SIGBUS, which touching the mapped bytes would be; with the source as it was, the command goes on."""
    copy, out = tmp_path / "copy", tmp_path / "out"
    shutil.copytree(source, copy)
    last = max(copy.glob("model-*"))
    with monkeypatch.context() as patch:
        stopped_at(45, patch, lambda: os.truncate(last, 100))
        with pytest.raises(CheckpointError, match="truncated while it was in use") as caught:
            quantize_directory(copy, out, "wint4-8")
    assert last.name in caught.value.where
    assert not out.exists()
    with pytest.raises(CheckpointError):
        quantize_directory(copy, out, "wint4-8")
    shutil.copy2(source / last.name, last)
    done = quantize_directory(copy, out, "wint4-8")
    assert any("went on behind" in note for note in done.notes)
    assert weights(out) == weights(whole[0])


def test_a_weight_that_is_not_finite_leaves_nothing(source, tmp_path):
    import numpy as np
    from safetensors import safe_open

    copy = tmp_path / "copy"
    shutil.copytree(source, copy)
    (copy / "erniecore_manifest.json").unlink()
    last = max(copy.glob("model-*"))
    with safe_open(str(last), "np") as file:
        names = list(file.keys())
    assert names
    data = bytearray(last.read_bytes())
    data[-2:] = np.array([0x7F80], "<u2").tobytes()  # infinity in bfloat16
    last.write_bytes(data)
    with pytest.raises(NumericsError, match="not finite"):
        quantize_directory(copy, tmp_path / "out", "wint4-8")
    assert not (tmp_path / "out").exists()
