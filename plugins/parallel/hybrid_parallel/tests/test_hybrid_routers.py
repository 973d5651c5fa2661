"""Gates and scaled norms of the residual stream, and all router losses, on every layout that a mixture of experts has: losses,
norms, evaluation, metrics, weights and moments of one process after three steps, at two and four processes.

The model has four layers, so that pipelines divide it, a multi-token-prediction layer, and norms that are scaled by their place.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from erniecore_checkpoint.reader import load_checkpoint
from erniecore_conformance.processes import on_ranks

HELPERS = __file__.replace("test_hybrid_routers.py", "hybrid_helpers.py")
SIZE = {
    "vocab_size": 320,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_nextn_predict_layers": 1,
    "tie_word_embeddings": "false",
}
COMMON = {
    # AdamW makes whole steps of what is rounding, where gradients cancel
    "optimizer__epsilon": 1e-5,
    "train__batch_size": 1,
    "train__accumulation": 4,
    "model__mtp": "true",
    "model__router_sequence_loss": 0.01,
    "checkpoint__export": "false",
}
#: every loss that is part of the gradient, with clipped gates; the orthogonal one by itself, with gates whose gradient is scaled
ALONE = {
    "coupled": {
        **COMMON,
        "model__gpas": "straight-through",
        "callbacks": "[gpas]",
        "callbacks__gpas__gradient_clip": 1e-4,
        "model__router_aux_loss": 0.01,
        "model__router_z_loss": 0.001,
        "model__router_orthogonal_loss": 0.01,
        "model__router_similarity_loss": 1e-4,
    },
    "decoupled": {
        **COMMON,
        "model__gpas": "plain",
        "model__router_orthogonal_loss": 100.0,
        "model__router_orthogonal_decoupled": "true",
    },
}
#: metrics that are those of the whole model, wherever its parts are
METRICS = {
    "coupled": ("router/aux", "router/sequence", "router/z", "router/orthogonal", "router/similarity"),
    "decoupled": ("router/sequence", "moe/orthogonal"),
}
DATA = {"parallel__data": 2, "train__accumulation": 2}
SHARDING = {"parallel__sharding": 2, "train__accumulation": 2}
GRADIENTS = {**SHARDING, "parallel__sharding_stage": 2}
PARAMETERS = {**SHARDING, "parallel__sharding_stage": 3}
EXPERT = {"parallel__expert": 2}
TENSOR = {"parallel__tensor": 2}
SEQUENCE = {**TENSOR, "parallel__sequence": "true"}
CONTEXT = {"parallel__context": 2}
PIPELINE = {"parallel__pipeline": 2}
CHUNKS = {**PIPELINE, "parallel__chunks": 2}
FOUR = {"parallel__data": 2, "parallel__sharding": 2, "train__accumulation": 1}
#: processes -> layouts
LAYOUTS = {
    2: [
        DATA,
        SHARDING,
        GRADIENTS,
        PARAMETERS,
        TENSOR,
        SEQUENCE,
        CONTEXT,
        DATA | EXPERT,
        SHARDING | EXPERT,
        GRADIENTS | EXPERT,
        PARAMETERS | EXPERT,
        PIPELINE,
        CHUNKS,
    ],
    4: [
        {"parallel__data": 4, "train__accumulation": 1},
        {"parallel__tensor": 4},
        {"parallel__context": 4},
        {"parallel__pipeline": 4},
        FOUR | EXPERT,
        FOUR | {"parallel__expert": 4, "parallel__sharding_stage": 2},
        FOUR | {"parallel__sharding_stage": 3},
        DATA | TENSOR,
        GRADIENTS | TENSOR | EXPERT,
        PARAMETERS | TENSOR,
        DATA | EXPERT | SEQUENCE,
        PARAMETERS | SEQUENCE,
        CONTEXT | TENSOR,
        CONTEXT | SEQUENCE,
        CONTEXT | DATA | EXPERT,
        CONTEXT | PARAMETERS | EXPERT,
        PIPELINE | DATA | EXPERT,
        PIPELINE | GRADIENTS,
        PIPELINE | PARAMETERS,
        PIPELINE | SEQUENCE,
        CHUNKS | SHARDING,
        CHUNKS | TENSOR,
        CHUNKS | CONTEXT,
    ],
}
#: layouts of four processes that the second run has too
BOTH = [
    {"parallel__tensor": 4},
    {"parallel__pipeline": 4},
    FOUR | {"parallel__expert": 4, "parallel__sharding_stage": 2},
    PARAMETERS | TENSOR,
    CONTEXT | PARAMETERS | EXPERT,
    CHUNKS | SHARDING,
]


def cases(count):
    """(run, layout) for so many processes."""
    both = LAYOUTS[2] if count == 2 else BOTH
    return [*(("coupled", layout) for layout in LAYOUTS[count]), *(("decoupled", layout) for layout in both)]


def label(name, layout):
    degrees = [
        f"{key.removeprefix('parallel__')}{value}" for key, value in layout.items() if key.startswith("parallel")
    ]
    return "-".join([name, *degrees])


@pytest.fixture(scope="module")
def new(words, hybrid_home):
    """``new(out, **changes)``: a run of three steps from new weights, which are the same for any number of processes."""

    def make(out, **changes):
        chosen = {"model__size": "tiny", "model__tokenizer": hybrid_home / "tok", "model__layer_norm_scaling": "true"}
        chosen |= {f"model__architecture__{key}": value for key, value in SIZE.items()}
        return [word for word in words(out, "deep-moe", **chosen, **changes) if not word.startswith("model.path=")]

    return make


@pytest.fixture(scope="module")
def alone(new, tmp_path_factory):
    """Directories of the runs of one process."""
    import erniecore

    place = tmp_path_factory.mktemp("alone")
    for name, options in ALONE.items():
        erniecore.run(overrides=new(place / name, **options), console="none")
    return place


@pytest.fixture(scope="module", params=sorted(LAYOUTS))
def together(request, new, tmp_path_factory):
    """(number of processes, directory of their runs): all of them in one launch."""
    place = tmp_path_factory.mktemp("together")
    todo = [
        new(place / label(name, layout), **{**ALONE[name], "parallel__name": "hybrid", **layout})
        for name, layout in cases(request.param)
    ]
    on_ranks(request.param, f"{HELPERS}:runs", todo, limit=1800.0)
    return request.param, place


def differences(name, one, other, compared):
    """What is not as it must be."""
    found = compared(one, other)
    found.assert_close()
    assert found.weights("optim") <= 1e-5
    for metric in (*METRICS[name], "mtp/loss", "moe/max_load"):
        assert found.of("step", metric) <= 1e-5, metric


@pytest.mark.multiproc
@pytest.mark.slow
def test_layouts_give_the_numbers_of_one_process(alone, together, compared):
    count, place = together
    wrong = []
    for name, layout in cases(count):
        print(label(name, layout), end=" ")
        try:
            differences(name, alone / name, place / label(name, layout), compared)
        except AssertionError as error:
            wrong.append(f"{label(name, layout)}: {error}")
    assert not wrong, wrong


def test_gates_and_routers_have_moved(alone, new, tmp_path):
    """What is compared is there: gates that began at 0, and routers that the loss by itself has turned."""
    import erniecore

    overrides = new(tmp_path / "without", **{**ALONE["decoupled"], "model__router_orthogonal_loss": 0})
    erniecore.run(overrides=overrides, console="none")
    runs = {"without": tmp_path / "without", **{name: alone / name for name in ALONE}}
    found = {name: load_checkpoint(out / "ckpt" / "step-00000003").tensors["model"] for name, out in runs.items()}
    for name in ALONE:
        gates = [found[name][key] for key in found[name] if key.endswith("residual.gate")]
        assert len(gates) == 4
        assert all(abs(float(gate[0])) > 1e-5 for gate in gates)
    routers = [key for key in found["without"] if key.endswith("mlp.gate.weight")]
    assert routers
    assert all(abs(found["decoupled"][key] - found["without"][key]).max() > 1e-4 for key in routers)


@pytest.mark.parametrize(("context", "inner"), [(2, 1), (1, 2), (2, 2), (3, 2)])
def test_choices_of_whole_rows_are_cut_to_the_positions_of_each_rank(context, inner):
    """Of a row that the ranks do not divide: the last position is repeated."""
    import paddle
    from erniecore_hybrid_parallel.positions import ContextShard
    from erniecore_hybrid_parallel.tensor import Shard

    values = np.arange(2 * 13 * 3).reshape([2, 13, 3])
    found = []
    for rank in range(context):
        slices = []
        for index in range(inner):
            tensor, rows = SimpleNamespace(size=inner, index=index), SimpleNamespace(size=context, index=rank)
            shard = ContextShard(rows, Shard(tensor, sequence=inner > 1))
            slices.append(shard.cut(paddle.to_tensor(values)).numpy())
            assert slices[-1].shape == (2, shard.here(13), 3)
            with shard.whole():
                np.testing.assert_array_equal(shard.cut(paddle.to_tensor(values)).numpy(), values)
        found.append(np.concatenate(slices, axis=1))
    whole = np.concatenate(found, axis=1)[:, np.argsort(shard.order(shard.padded(13)))]
    np.testing.assert_array_equal(whole[:, :13], values)
    assert (whole[:, 13:] == values[:, -1:]).all()
