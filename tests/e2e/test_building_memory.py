"""Memory of building: on every rank, what it keeps and two of the largest tensors, whatever the model, quantizer and layout.

Each case is a fork of this process, which has imported paddle already; its peak is read from the kernel. A model of 160 MB in
float32 stands in for one of any size; ``whole first``, which fills the model before anything is packed or cut, must fail.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from erniecore_model_init.new_model import init_model
from erniecore_text.training import train

MB = 1 << 20
#: what a process takes beside its tensors: code that is imported, threads, freed blocks that are too small to give back
REST = 40 * MB
MODELS = {
    "ernie45": "hidden_size=384,intermediate_size=1536,num_hidden_layers=15,head_dim=96,vocab_size=9000",
    "ernie45-moe": "hidden_size=384,intermediate_size=512,num_hidden_layers=12,vocab_size=9000,"
    "moe_intermediate_size=256,moe_num_experts=8,moe_layer_start_index=1,moe_layer_end_index=11",
}


@pytest.fixture(scope="module", params=MODELS)
def base(request, tmp_path_factory):
    """A model directory in bfloat16, and the bytes of its weights in float32."""
    home = tmp_path_factory.mktemp("base")
    train(["the quick brown fox jumps over the lazy dog " * 20], 320).save(home)
    made = init_model(request.param, MODELS[request.param], home, home / "m", dtype="bfloat16", shard_size="30MB")
    return request.param, made.path, made.parameters * 4


def build(name, directory, change, *, whole_first=False):
    """The model with ``change`` applied while it was empty."""
    import paddle

    from erniecore.api import building
    from erniecore.engine.models.filling import fill
    from erniecore.engine.models.weights import attach_weights, check_weights

    plugin = building.model_plugin(name)
    bundle, _ = building.build_bundle(plugin, {"path": str(directory)}, None, "float32")
    checked = check_weights(directory, bundle.architecture, bundle.adapter)
    attach_weights(bundle.model, directory, checked)
    if whole_first:
        fill(bundle.model)
    with paddle.no_grad():
        change(bundle.model)
    fill(bundle.model)
    return bundle.model


def nothing(model):
    pass


def packed(model):
    from erniecore_weight_only.plugin import wint4

    from erniecore.engine.models.quantized import apply

    apply(wint4, wint4.Config(), model, "train")


def adapted(model):
    from erniecore_lora.build import adapt
    from erniecore_lora.config import LoraConfig, Variant

    adapt(model, LoraConfig(), Variant())


def tensor_parallel(model):
    """One of four ranks: matrices by columns, stacks of experts by experts."""
    from erniecore_hybrid_parallel.tensor import keep_shard

    for parameter in model.parameters():
        if parameter.ndim > 2 or (parameter.ndim == 2 and parameter.shape[1] % 4 == 0 and parameter.shape[0] > 8):
            axis = 0 if parameter.ndim == 3 else 1
            keep_shard(parameter, axis, SimpleNamespace(size=4, index=1))


def sharded(model):
    """One of four ranks of stage 3: a flat range of every large parameter."""
    from erniecore.api.layers import keep_range

    for parameter in model.parameters():
        if parameter.size > 1024:
            size = parameter.size // 4
            keep_range(parameter, size, 2 * size)


def one_stage(model):
    """One of four stages of a pipeline."""
    from erniecore_hybrid_parallel.stages import EmptyLayer

    layers = model.model.layers
    for index in range(len(layers)):
        if index % 4 != 1:
            layers[index] = EmptyLayer()


def tensor_and_stage(model):
    tensor_parallel(model)
    one_stage(model)


CHANGES = [nothing, packed, adapted, tensor_parallel, sharded, one_stage, tensor_and_stage]


def measured(work):
    """What ``work`` returns in a fork of this process, and by how many bytes its memory grew at the most."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            from erniecore_system.memory import release_freed

            release_freed()
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
            before = status("VmRSS")
            found = work()
            os.write(writing, json.dumps([found, status("VmHWM") - before]).encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as stream:
        text = stream.read()
    assert os.waitpid(child, 0)[1] == 0
    return json.loads(text)


def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key)).split()[1])


def kept_bytes(name, directory, change, whole_first=False):
    model = build(name, directory, change, whole_first=whole_first)
    state = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    return sum(int(t.size) * t.element_size() for t in state.values())


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_rank_takes_what_it_keeps_and_two_of_the_largest_tensors(base, change):
    name, directory, whole = base
    largest = 9000 * 384 * 4
    kept, peak = measured(lambda: kept_bytes(name, directory, change))
    bound = kept + 2 * largest + REST
    assert peak < bound, (kept / MB, peak / MB, bound / MB)
    if change in (nothing, adapted):
        return
    assert bound < 0.9 * whole, "the bound would not tell"
    _, peak = measured(lambda: kept_bytes(name, directory, change, True))
    assert peak > bound, (peak / MB, bound / MB)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_values_are_those_of_a_model_that_is_whole_first(base, change):
    name, directory, _ = base
    found = build(name, directory, change).state_dict()
    expected = build(name, directory, change, whole_first=True).state_dict()
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        assert ".lora." in key or np.array_equal(found[key].numpy(), tensor.numpy()), key


def touched_bytes(name, directory, change, *, whole_first):
    """Bytes of the weight files whose pages the model with ``change`` takes into memory, none of which are given back."""
    from erniecore_checkpoint import safetensors_io

    from erniecore.engine.models import weights

    kept, look, of_file = [], safetensors_io._view, weights.source_of
    safetensors_io._view = lambda path, tensor, mapped, info: kept.append(mapped) or look(path, tensor, mapped, info)
    safetensors_io._release = lambda *given: None
    if whole_first:
        weights.source_of = lambda *a: of_file(*a)._replace(within=None)
    build(name, directory, change)
    found, mine = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if not line[:1].isupper():
            mine = str(directory) in line
        elif mine and line.startswith("Rss:"):
            found += 1024 * int(line.split()[1])
    return found


def test_a_rank_reads_what_it_keeps_of_a_file(base):
    """A quarter and, as the kernel maps 64 KiB around a page, up to twice as much of matrices as small as these; rows of the
    embedding share pages. Without that, all of it is read and then cut."""
    name, directory, whole = base
    read, _ = measured(lambda: touched_bytes(name, directory, tensor_parallel, whole_first=False))
    assert 0.2 * whole / 2 < read < 0.75 * whole / 2, read / MB
    read, _ = measured(lambda: touched_bytes(name, directory, tensor_parallel, whole_first=True))
    assert read > 0.95 * whole / 2, read / MB


@pytest.mark.parametrize("part", [[slice(1, 3)], [slice(2, 4), slice(1, 5)], [slice(None), slice(3, 7), slice(0, 2)]])
def test_parts_of_parts_are_read_as_they_are_cut(base, part):
    """Of a file, of values that are there, and of a part; flat ranges begin and end within a row."""
    from erniecore.api.layers import filled, keep_part, keep_range

    name, directory, _ = base
    whole = build(name, directory, nothing)
    for cut in (lambda t: keep_part(t, [slice(0, 6), slice(2, 40)]), lambda t: keep_range(t, 1003, 4321)):
        expected, found = dict(whole.named_parameters()), {}

        def change(model, cut=cut, found=found):
            for key, parameter in model.named_parameters():
                if parameter.ndim > 1 and "gate.weight" not in key and min(parameter.shape) >= 8:
                    cut(parameter)
                    if parameter.ndim > 1:
                        keep_part(parameter, part[: parameter.ndim])
                    found[key] = filled(parameter).numpy()

        build(name, directory, change)
        assert len(found) > 10
        for key, values in found.items():
            like = expected[key].clone()
            cut(like)
            if like.ndim > 1:
                keep_part(like, part[: like.ndim])
            assert np.array_equal(values, like.numpy()), key
            own = expected[key].numpy()
            box = own[0:6, 2:40]
            assert np.array_equal(values, own.ravel()[1003:4321] if like.ndim == 1 else box[tuple(part[: own.ndim])]), (
                key
            )
