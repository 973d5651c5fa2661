"""``ernie quantize`` with calibration data, one decoder layer after another: the bytes of the whole model, never more than a
layer in memory, and behind what a killed command finished.
"""

import os
import signal

import pytest
from erniecore_checkpoint.safetensors_write import SafetensorsFile
from erniecore_model_init.new_model import init_model
from erniecore_ptq import calibrate
from erniecore_quantize import quantize, streaming
from erniecore_quantize.quantize import Data, quantize_directory
from erniecore_text.training import train

from erniecore.api.layers import is_empty
from erniecore.engine.models import quantized_files
from erniecore.engine.models.bundles import load_bundle

SIZE = (
    "vocab_size=400,hidden_size=32,intermediate_size=64,num_hidden_layers=4,moe_intermediate_size=32,moe_num_experts=4"
)
#: quantizer, settings; each with another work per layer
CASES = [
    ("gptq", ("cache=int8",)),
    ("awq", ("grid=3",)),
    ("fp8-ptq", ("hadamard_block=16",)),
    ("w8a8", ("cache=int4", "cache_scales=dynamic")),
    ("kv-cache", ("weights=wint4-8",)),
    ("kv-cache", ("cache=fp8",)),
]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    home = tmp_path_factory.mktemp("base")
    train(["the quick brown fox jumps over the lazy dog " * 20], 320).save(home)
    return init_model("ernie45-moe", SIZE, home, home / "m", dtype="bfloat16", shard_size="30KB").path


@pytest.fixture
def data(tmp_path):
    rows = tmp_path / "rows.jsonl"
    row = '{"instruction": "the fox %d", "output": "jumps over the lazy dog"}\n'
    rows.write_text("".join(row % number for number in range(24)))
    return Data([str(rows)], max_seq_len=32)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Several files, and several groups of experts, for a tiny model."""
    monkeypatch.setattr(quantized_files, "DEFAULT_SHARD_BYTES", 9_000)
    monkeypatch.setattr(streaming, "_CALIBRATED_FILE", 9_000)
    monkeypatch.setattr(calibrate, "_HESSIANS", 40_000)


def weights(directory):
    return {path.name: path.read_bytes() for path in sorted(directory.glob("weights-*"))}


def at_once(source, out, to, settings, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantize, "can_stream", lambda plugin: False)
        return quantize_directory(source, out, to, settings, data)


@pytest.mark.parametrize(("to", "settings"), CASES, ids=[" ".join((to, *some)) for to, some in CASES])
def test_layer_by_layer_is_what_the_whole_model_is(source, data, tmp_path, to, settings):
    """The files, the losses and what is reported, with one layer in memory at a time; then again behind a kill."""
    whole = at_once(source, tmp_path / "whole", to, settings, data)
    with pytest.MonkeyPatch.context() as patch:
        filled = observed(patch)
        done = quantize_directory(source, tmp_path / "out", to, settings, data)
    # weights that stay as they are go from file to file
    assert filled == ({()} if settings == ("cache=fp8",) else {(), (0,), (1,), (2,), (3,)})
    assert len(weights(whole.path)) > 4
    assert weights(done.path) == weights(whole.path)
    assert (done.before, done.after, done.cache) == (whole.before, whole.after, whole.cache)
    assert done.notes == whole.notes
    for found, expected in zip(done.layers, whole.layers, strict=True):
        assert (found.name, found.shape, found.output_db) == (expected.name, expected.shape, expected.output_db)
        assert found.sqnr_db == pytest.approx(expected.sqnr_db, abs=1e-6)
    again = tmp_path / "again"
    killed_at(len(all_tensors(whole.path)) * 2 // 3, lambda: quantize_directory(source, again, to, settings, data))
    assert not again.exists()
    more = quantize_directory(source, again, to, settings, data)
    assert any("went on behind" in note for note in more.notes)
    assert weights(again) == weights(whole.path)
    assert (more.layers, more.cache) == (done.layers, done.cache)


def all_tensors(directory):
    from safetensors import safe_open

    found = []
    for path in directory.glob("weights-*"):
        with safe_open(str(path), "np") as file:
            found += list(file.keys())
    return found


def killed_at(place, work):
    """``work`` in a fork that kills itself where it would write the tensor number ``place``."""
    child = os.fork()
    if not child:
        add, count = SafetensorsFile.add, iter(range(1_000_000))

        def change(file, name, tensor):
            if next(count) == place:
                os.kill(os.getpid(), signal.SIGKILL)
            add(file, name, tensor)

        SafetensorsFile.add = change
        try:
            work()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def observed(patch):
    """What is in memory whenever a tensor has been written: the decoder layers of which a matrix has values."""
    filled, models = set(), []
    opened, add = quantize.open_located, SafetensorsFile.add

    def opening(*args, **options):
        found = opened(*args, **options)
        models.append(found.bundle.model)
        return found

    def change(file, name, tensor):
        add(file, name, tensor)
        layers = enumerate(models[0].model.layers)
        filled.add(tuple(k for k, layer in layers if any(t.ndim > 1 and not empty(t) for t in tensors(layer))))

    patch.setattr(quantize, "open_located", opening)
    patch.setattr(SafetensorsFile, "add", change)
    return filled


def tensors(layer):
    return [*layer.parameters(), *layer.buffers()]


def empty(tensor):
    return is_empty(tensor) or not tensor._is_initialized()


def test_other_data_begins_anew(source, data, tmp_path, monkeypatch):
    """Behind finished files, which are smaller than usual ones."""
    monkeypatch.setattr(quantized_files, "DEFAULT_SHARD_BYTES", 1_000_000)
    out = tmp_path / "out"
    killed_at(60, lambda: quantize_directory(source, out, "gptq", (), data))
    done = quantize_directory(source, out, "gptq", (), data._replace(max_seq_len=24))
    assert any("begun anew, as calibration data changed" in note for note in done.notes)


@pytest.mark.parametrize("to", ["gptq", "w8a8"])
def test_a_directory_is_opened_without_values(source, data, tmp_path, to):
    """So that a quantized model of any size is."""
    quantize_directory(source, tmp_path / "out", to, (), data)
    model = load_bundle(tmp_path / "out", empty=True).bundle.model
    assert all(map(is_empty, model.parameters()))
    values = [buffer for name, buffer in model.named_buffers() if name.endswith("quant_weight")]
    assert values
    assert all(map(is_empty, values))
