# ruff: noqa: ANN001, ANN003, ANN201, ANN202
"""Fixtures that tests of model plugins share: golden files, models filled from them, and the numpy reference model."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file
from sites import site as site  # the fixture
from sites import toys as toys
from talker import talker as talker  # the fixture
from warmed import one_revision as one_revision
from warmed import warm as warm
from warmed import warm_ranks as warm_ranks

MODELS = Path(__file__).parents[1] / "tests" / "fixtures" / "models"


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """Directory of the golden model fixtures; each has a README."""
    return MODELS


@pytest.fixture(scope="session")
def golden():
    """Name of a fixture -> its directory, tensors (golden.safetensors), numbers (golden.json) and weights."""
    return _golden


@pytest.fixture(scope="session")
def build():
    """(plugin, config.json content, public tensors or None, **settings) -> a model, filled strictly if tensors are given."""
    return _build


@pytest.fixture(scope="session")
def reference() -> ModuleType:
    """The float64 numpy model, an implementation of its own from the published formulas."""
    path = Path(__file__).parent / "models" / "ernie45" / "tests" / "numpy_reference.py"
    spec = importlib.util.spec_from_file_location("numpy_reference", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Golden(SimpleNamespace):
    """The files of one stored reference run; see ``golden``."""

    def inputs(self, batch):
        """Name -> tensor of what the model was given."""
        import paddle

        return {name: paddle.to_tensor(self.tensors[f"{batch}.{name}"]) for name in self.numbers["batches"][batch]}

    def real_tokens(self, batch):
        """bool [B, S], where there is no padding."""
        mask = self.tensors.get(f"{batch}.attention_mask")
        shape = self.tensors[f"{batch}.input_ids"].shape
        return np.ones(shape, bool) if mask is None else mask.astype(bool)

    def token_losses(self, model, batch):
        """Loss of each token, float32 [T], 0 where nothing is learned, and how many positions are learned."""
        import paddle

        from erniecore.api import ops

        hidden = model.features(**self.inputs(batch)).hidden
        labels = self.tensors[f"{batch}.labels_shifted"].reshape(-1)
        weight, transposed, bias = model.head()
        flat = hidden.reshape([-1, hidden.shape[-1]])
        losses = ops.linear_cross_entropy(flat, weight, paddle.to_tensor(labels), transposed=transposed, bias=bias)
        return losses, int((labels != -100).sum())

    def check_rotary_axes(self, model, batch):
        """Compare queries and keys of the first layer, turned by positions on three axes, with what is stored."""
        import paddle

        from erniecore.api import ops

        positions = paddle.to_tensor(self.tensors[f"{batch}.position_ids"].transpose(1, 2, 0))
        context = model.make_context(self.inputs(batch)["input_ids"], cache=None, position_ids=positions)
        for name in ("q", "k"):
            before = paddle.to_tensor(self.tensors[f"{batch}.layer0.{name}_in"].transpose(0, 2, 1, 3))
            found = ops.apply_rope(before, context.cos, context.sin, halves=context.halves).numpy()
            expected = self.tensors[f"{batch}.layer0.{name}_rot"]
            np.testing.assert_allclose(found.transpose(0, 2, 1, 3), expected, atol=2e-6, rtol=0)

    def check_hidden_states(self, model, batch, *, embedding=True):
        """Compare what every part of the decoder gives for ``batch`` with what is stored, where there is no padding.

        ``embedding``: whether the stored one is that of the tokens alone, without images."""
        seen = {}

        def keep(name):
            def hook(layer, args, output):
                seen[name] = (output[0] if isinstance(output, tuple) else output).numpy()

            return hook

        decoder = model.model
        parts = {"final_norm_out": decoder.norm} | ({"embed_out": decoder.embed_tokens} if embedding else {})
        for i, layer in enumerate(decoder.layers):
            parts |= {f"layer{i}_out": layer, f"layer{i}_attn_out": layer.self_attn, f"layer{i}_mlp_out": layer.mlp}
        for name, part in parts.items():
            part.register_forward_post_hook(keep(name))
        model(**self.inputs(batch))
        prefix, real = f"{batch}.hidden.", self.real_tokens(batch)
        stored = {name.removeprefix(prefix) for name in self.tensors if name.startswith(prefix)}
        assert stored - (set() if embedding else {"embed_out"}) == set(seen)
        for name, found in seen.items():
            expected = self.tensors[prefix + name]
            np.testing.assert_allclose(found[real], expected[real], atol=2e-5, rtol=0, err_msg=name)

    def check_gradients(self, found, *, atol=1e-12):
        """Compare gradients by public name with the stored norms, and with those that are stored whole."""
        assert set(found) == set(self.numbers["grad_norm"])
        for name, norm in self.numbers["grad_norm"].items():
            assert np.linalg.norm(found[name].astype(np.float64)) == pytest.approx(norm, rel=1e-4, abs=atol), name
        for name in (n for n in self.tensors if n.startswith("grad.")):
            np.testing.assert_allclose(found[name[5:]], self.tensors[name], atol=2e-5, rtol=0, err_msg=name)


def _golden(name: str) -> Golden:
    directory = MODELS / name
    return Golden(
        directory=directory,
        tensors=load_file(directory / "golden.safetensors"),
        numbers=json.loads((directory / "golden.json").read_text()),
        weights=load_file(directory / "model.safetensors"),
        config=json.loads((directory / "config.json").read_text()),
    )


def _build(plugin, source, tensors=None, *, layout="pt", dtype="float32", **settings):
    import paddle

    config = plugin.Config(architecture=dict(source), **settings)
    architecture = plugin.ernie_read_architecture(config=config)
    paddle.seed(7)
    model = _call(plugin.ernie_build_model, config=config, architecture=architecture, dtype=dtype)
    if tensors is not None:
        fill(model, plugin.ernie_state_adapter(architecture=architecture), tensors, layout)
    return model


def _call(hook, **arguments):
    """As the host does: an implementation may take fewer arguments."""
    taken = hook.__code__.co_varnames[: hook.__code__.co_argcount]
    return hook(**{name: value for name, value in arguments.items() if name in taken})


def fill(model, adapter, tensors, layout) -> None:
    """Every parameter once, every public tensor used or ignored, every shape as the map says."""
    assert adapter.layout_of(list(tensors)) == layout
    state, used = dict(model.state_dict()), set()
    for entry in adapter.maps(layout, list(tensors)):
        arrays = [tensors[name] for name in entry.sources]
        for array, shape in zip(arrays, entry.source_shapes, strict=True):
            assert all(have == want or want < 0 for have, want in zip(array.shape, shape, strict=True)), entry
        loaded = np.ascontiguousarray(entry.load(arrays))
        assert loaded.shape == tuple(entry.shape) == tuple(state[entry.name].shape), entry.name
        state.pop(entry.name).set_value(loaded)
        used.update(entry.sources)
    assert not state, f"not filled: {sorted(state)}"
    spare = {name for name in tensors if name not in used and not adapter.ignored(name)}
    assert not spare, f"not used: {sorted(spare)}"


@pytest.fixture(scope="session")
def public_gradients():
    """(plugin, model after backward) -> gradients under public names, in Hugging Face format."""
    return _public_gradients


def _public_gradients(plugin, model):
    adapter = plugin.ernie_state_adapter(architecture=model.architecture)
    parameters, found = dict(model.named_parameters()), {}
    for entry in adapter.maps("pt"):
        gradient = parameters[entry.name].grad
        if gradient is not None:
            found.update(zip(entry.sources, entry.store(gradient.numpy()), strict=True))
    return found


@pytest.fixture(scope="session")
def greedy():
    """(model, ids [B, S], steps, mask or None, cache or None) -> (tokens [B, steps], logits [B, steps, V])."""
    return _greedy


@pytest.fixture
def cache():
    """An empty cache that joins what it is given: the plainest thing that ``erniecore.api.Cache`` allows."""
    return _Cache()


class _Cache:
    def __init__(self) -> None:
        self.stored = {}

    @property
    def length(self):
        return min((keys.shape[1] for keys, _ in self.stored.values()), default=0)

    def update(self, layer, key, value):
        import paddle

        old = self.stored.get(layer, (key[:, :0], value[:, :0]))
        self.stored[layer] = tuple(paddle.concat(pair, axis=1) for pair in zip(old, (key, value), strict=True))
        return self.stored[layer]


def _greedy(model, ids, steps, mask, cache):
    import paddle

    mask = np.ones_like(ids) if mask is None else mask
    tokens, logits = [], []
    for _ in range(steps):
        positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
        new = slice(cache.length if cache is not None else 0, None)
        arrays = {"input_ids": ids[:, new], "position_ids": positions[:, new], "attention_mask": mask}
        with paddle.no_grad():
            last = model(**{k: paddle.to_tensor(v) for k, v in arrays.items()}, cache=cache).numpy()[:, -1]
        token = last.argmax(axis=-1)[:, None]
        ids, mask = np.concatenate([ids, token], axis=1), np.concatenate([mask, np.ones_like(token)], axis=1)
        tokens.append(token)
        logits.append(last)
    return np.concatenate(tokens, axis=1), np.stack(logits, axis=1)


def _spread_attention(q_BShd, k_BKkd, v_BKkd, *, startend_row_indices=None, attention_mask=None):
    """Attention whose rows without any key see all of them alike, also later ones: how the reference computes padding."""
    import paddle

    groups = q_BShd.shape[2] // k_BKkd.shape[2]
    q, k, v = (x.transpose([0, 2, 1, 3]) for x in (q_BShd, *(x.repeat_interleave(groups, 2) for x in (k_BKkd, v_BKkd))))
    seen = paddle.ones([q.shape[2], k.shape[2]]).tril().astype("bool").unsqueeze([0, 1])
    if attention_mask is not None:
        seen = paddle.logical_and(seen, attention_mask.astype("bool").unsqueeze([1, 2]))
    scores = paddle.matmul(q, k, transpose_y=True) * q.shape[-1] ** -0.5
    hidden = paddle.logical_not(seen).astype("float32") * float(np.finfo(np.float32).min)
    weights = paddle.nn.functional.softmax(scores + hidden, axis=-1)
    return paddle.matmul(weights, v).transpose([0, 2, 1, 3])


@pytest.fixture
def padding_of_the_reference(monkeypatch, model):
    """One label of the stored loss is predicted by a position of padding, which ours computes otherwise: there the
    reference sees all keys, routes like text, and learns nothing for the embedding of its id."""
    import paddle

    from erniecore.api import ops

    monkeypatch.setattr(ops, "attention", _spread_attention)
    monkeypatch.setattr("erniecore_ernie45.context.real_positions", lambda *args: None)

    def hook(layer, args, output):
        return paddle.where((args[0] == 0).unsqueeze(-1), output.detach(), output)

    model.model.embed_tokens.register_forward_post_hook(hook)
