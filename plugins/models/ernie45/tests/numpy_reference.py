"""ERNIE 4.5 text models in numpy, float64, one row and one token at a time: slow, plain, and written from the formulas
alone, so that it can tell whether the Paddle models are right over the whole space of configurations. Dense and
mixture-of-experts; public tensor names, matrices [out, in].

Letters: S positions, H hidden, d head size, E experts.
"""

from __future__ import annotations

import numpy as np


def config(**changes):
    """A small config.json; ``changes`` replace keys."""
    base = {
        "model_type": "ernie4_5",
        "vocab_size": 61,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "use_bias": False,
        "hidden_act": "silu",
    }
    return {**base, **changes}


def moe_config(**changes):
    """A small mixture-of-experts config.json."""
    base = {
        "model_type": "ernie4_5_moe",
        "moe_num_experts": 5,
        "moe_k": 2,
        "moe_intermediate_size": 12,
        "moe_num_shared_experts": 1,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": -1,
        "moe_layer_interval": 1,
    }
    return config(**{**base, **changes})


def is_moe(c, index):
    if "moe_num_experts" not in c:
        return False
    last = c["num_hidden_layers"] - 1 if c["moe_layer_end_index"] < 0 else c["moe_layer_end_index"]
    return (index + 1) % c["moe_layer_interval"] == 0 and c["moe_layer_start_index"] <= index <= last


def shapes(c):
    """Public name -> shape of every tensor."""
    H, d, q, kv = c["hidden_size"], c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
    out = {"model.embed_tokens.weight": (c["vocab_size"], H), "model.norm.weight": (H,)}
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = (c["vocab_size"], H)
    if "moe_num_experts" in c and c["use_bias"]:
        out["lm_head.bias"] = (c["vocab_size"],)

    def linear(name, rows, columns, bias):
        out[f"{name}.weight"] = (rows, columns)
        if bias:
            out[f"{name}.bias"] = (rows,)

    def mlp(name, width, bias):
        linear(f"{name}.gate_proj", width, H, bias)
        linear(f"{name}.up_proj", width, H, bias)
        linear(f"{name}.down_proj", H, width, bias)

    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}"
        out[f"{p}.input_layernorm.weight"] = out[f"{p}.post_attention_layernorm.weight"] = (H,)
        for name, rows, columns in (("q", q * d, H), ("k", kv * d, H), ("v", kv * d, H), ("o", H, q * d)):
            linear(f"{p}.self_attn.{name}_proj", rows, columns, c["use_bias"])
        if not is_moe(c, i):
            mlp(f"{p}.mlp", c["intermediate_size"], c["use_bias"])
            continue
        E, width = c["moe_num_experts"], c["moe_intermediate_size"]
        out[f"{p}.mlp.gate.weight"] = (E, H)
        out[f"{p}.mlp.moe_statics.e_score_correction_bias"] = (1, E)
        for e in range(E):
            mlp(f"{p}.mlp.experts.{e}", width, False)
        if c["moe_num_shared_experts"]:
            mlp(f"{p}.mlp.shared_experts", width * c["moe_num_shared_experts"], c["use_bias"])
    return out


def random_weights(c, seed=0):
    """float32 weights large enough for every part to matter."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in shapes(c).items():
        value = rng.standard_normal(shape) * (0.3 if len(shape) > 1 else 0.1)
        weights[name] = (value + (1.0 if name.endswith("norm.weight") else 0.0)).astype(np.float32)
    return weights


def logits(c, weights, ids, positions=None, ends=None):
    """[B, S, V] in float64. ``ends`` [B, S]: first row that no longer sees a column."""
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    B, S = ids.shape
    positions = np.tile(np.arange(S), (B, 1)) if positions is None else positions
    ends = np.full((B, S), S) if ends is None else ends
    return np.stack([_row(c, w, ids[b], positions[b], ends[b]) for b in range(B)])


def _row(c, w, ids, positions, ends):
    x = w["model.embed_tokens.weight"][ids]
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}"
        x = x + _attention(c, w, p, _norm(c, w, f"{p}.input_layernorm", x), positions, ends)
        normed = _norm(c, w, f"{p}.post_attention_layernorm", x)
        x = x + (_experts(c, w, f"{p}.mlp", normed) if is_moe(c, i) else _mlp(w, f"{p}.mlp", normed))
    x = _norm(c, w, "model.norm", x)
    head = w["model.embed_tokens.weight"] if c["tie_word_embeddings"] else w["lm_head.weight"]
    return x @ head.T + w.get("lm_head.bias", 0.0)


def _norm(c, w, name, x):
    return w[f"{name}.weight"] * x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + c["rms_norm_eps"])


def _linear(w, name, x):
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)


def _mlp(w, name, x):
    gate = _linear(w, f"{name}.gate_proj", x)
    return _linear(w, f"{name}.down_proj", gate / (1 + np.exp(-gate)) * _linear(w, f"{name}.up_proj", x))


def _rotate(x_d, position, theta):
    """One head: the pairs (2i, 2i + 1) turn as complex numbers."""
    d = len(x_d)
    turned = (x_d[0::2] + 1j * x_d[1::2]) * np.exp(1j * position * theta ** (-2 * np.arange(d // 2) / d))
    out = np.empty(d)
    out[0::2], out[1::2] = turned.real, turned.imag
    return out


def _attention(c, w, p, x, positions, ends):
    S, d, heads, kv = len(x), c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
    q, k, v = (_linear(w, f"{p}.self_attn.{n}_proj", x).reshape(S, -1, d) for n in "qkv")
    out = np.zeros((S, heads, d))
    for h in range(heads):
        g = h // (heads // kv)
        keys = [_rotate(k[j, g], positions[j], c["rope_theta"]) for j in range(S)]
        for i in range(S):
            seen = [j for j in range(i + 1) if i < ends[j]]
            if not seen:
                continue
            query = _rotate(q[i, h], positions[i], c["rope_theta"])
            scores = np.array([query @ keys[j] for j in seen]) / np.sqrt(d)
            shares = np.exp(scores - scores.max())
            out[i, h] = (shares / shares.sum()) @ v[seen, g]
    return _linear(w, f"{p}.self_attn.o_proj", out.reshape(S, heads * d))


def _experts(c, w, p, x):
    bias, k = w[f"{p}.moe_statics.e_score_correction_bias"][0], c["moe_k"]
    out = np.zeros_like(x)
    for t, token in enumerate(x):
        scores = np.exp(w[f"{p}.gate.weight"] @ token)
        scores = scores / scores.sum()
        chosen = np.argsort(-(scores + bias))[:k]
        for e in chosen:
            out[t] += scores[e] / scores[chosen].sum() * _mlp(w, f"{p}.experts.{e}", token)
    if c["moe_num_shared_experts"]:
        out = out + _mlp(w, f"{p}.shared_experts", x)
    return out
