"""Bytes that the forward pass keeps for the backward pass, operator by operator, and their workspace.

The formulas follow the operators of this project (``erniecore_ops``) and the models that use them: what each saves for
its backward pass, nothing else. Letters: T tokens of a micro-batch, H hidden, q = heads x head size, k = key heads x head
size, I width of the MLP, N = T x selected experts, W width of an expert, E experts, V vocabulary, e bytes per element.

| operator | keeps, bytes |
|---|---|
| two norms | 8 T H + 8 T: input, a factor per row (low precision: 12 T H, float32 copy, normed rows) |
| attention | 4 T (2q + 2k): queries, keys, values and result in float32; 2 T q more in low precision |
| MLP | 2 e T I: gate and up; their product, which ``down`` reads, is recomputed |
| router | T (8 E + 28 k + 8): probabilities twice, choices, weights and routes of k experts; 4 T H more in low precision |
| experts | 2 e N W: gate and up. Under an adapter on experts: e N (2H + 3W), as rows are sorted for each product |
| head and loss | 12 T H + 12 T: the last norm, and the gradient that is made beside the loss |
| vision | e P n for P patches: n numbers that the model names, of the tower if it is trained, of what follows it if either is |

Rows of a model that sees are images from end to end, unless ``data.max_patches`` says less.

The output of a norm, and the product in the MLP, are recomputed where they are needed (``ops.rematerialized``).
Recomputation: ``full`` keeps e T H per layer, its input; ``attention`` drops the attention's row, and like ``core-attention``
keeps e T H more, what the attention reads; ``core-attention`` drops
nothing, because attention here never keeps probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass

from erniecore.api.model import DecoderShape, LayerShape, VisionShape

#: logits held at a time, and the fewest positions of a piece, where ``train.loss_chunk`` is 0
LOGITS, FEWEST = 1 << 22, 256
#: query rows of one block of the attention; masks of packed rows are kept for this many batches, and are about so wide
BLOCK_ROWS, BATCHES, MASK_KEYS = 512, 4, 200


@dataclass(frozen=True, slots=True)
class Work:
    """How a model is trained, as far as activations depend on it.

    Attributes:
        tokens: T, of one micro-batch. length: longest row. element: bytes per element of weights and activations.
        recompute: ``train.recompute``. loss_chunk: ``train.loss_chunk``.
        head_trained: whether the head's weight has a gradient. ranks: sum of the ranks of all low-rank updates.
        adapted_experts: whether stacked experts have updates. masks: whether attention keeps masks of packed rows; an
            installed kernel makes none. apart: whether each piece's gradient of the head is made before it is added to
            the sum; an installed kernel adds while it multiplies.
        patches: P, of one micro-batch, at most. tower, joint: whether they keep activations.
    """

    tokens: int
    length: int
    element: int = 4
    recompute: str = "none"
    loss_chunk: int = 1024
    head_trained: bool = True
    ranks: int = 0
    adapted_experts: bool = False
    masks: bool = True
    apart: bool = True
    patches: int = 0
    tower: bool = False
    joint: bool = False


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes. ``residual``, ``attention``, ``mlp``, ``router``, ``experts``, ``adapter``, ``loss``, ``vision`` are saved from the
    forward pass to the backward pass; ``logits`` and ``workspace`` are transient (the latter: of the most expensive layer), and
    so is ``seeing``, before the decoder begins; ``masks`` of the last batches stay."""

    residual: int
    attention: int
    mlp: int
    router: int
    experts: int
    adapter: int
    loss: int
    logits: int
    workspace: int
    masks: int = 0
    vision: int = 0
    seeing: int = 0

    @property
    def saved(self) -> int:
        """All that is held between the passes."""
        decoder = self.residual + self.attention + self.mlp + self.router + self.experts
        return decoder + self.adapter + self.loss + self.vision


def saved_by_layer(hidden: int, layer: LayerShape, work: Work) -> dict[str, int]:
    """Bytes that one layer keeps, by operator; see the table above."""
    tokens, element, low = work.tokens, work.element, work.element < 4
    if work.recompute == "full":
        return {"residual": element * tokens * hidden}
    queries, keys, rows = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim, tokens * layer.selected
    wide = work.adapted_experts and layer.experts
    normed = 0 if work.recompute == "none" else element * tokens * hidden
    return {
        "residual": tokens * ((12 if low else 8) * hidden + 8) + normed,
        "attention": 0 if work.recompute == "attention" else tokens * (8 * (queries + keys) + (2 * queries * low)),
        "mlp": 2 * element * tokens * layer.mlp,
        "router": tokens * (8 * layer.experts + 28 * layer.selected + 8 + 4 * hidden * low) if layer.experts else 0,
        "experts": element * rows * (2 * hidden + 3 * layer.expert if wide else 2 * layer.expert),
    }


def workspace_of_layer(hidden: int, layer: LayerShape, work: Work) -> int:
    """Workspace of one layer's backward pass; with recomputation, also what it computes again.

    MLP: gradients of gate, up and product, and two of the residual stream. Attention: four copies of queries and of keys, for
    their gradients in another order, and three blocks of scores. Experts: sorted rows in and out and the same of gradients.
    """
    tokens, element = work.tokens, work.element
    queries, keys, rows = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim, tokens * layer.selected
    mlp = element * tokens * (3 * layer.mlp + 2 * hidden)
    attention = 4 * (tokens * 4 * (queries + keys) + 3 * BLOCK_ROWS * work.length)
    experts = element * rows * (3 * hidden + 5 * layer.expert)
    again = 0
    if work.recompute in ("full", "attention"):
        again_work = Work(**{**{f: getattr(work, f) for f in work.__slots__}, "recompute": "none"})
        parts = saved_by_layer(hidden, layer, again_work)
        again = sum(parts.values()) if work.recompute == "full" else parts["attention"]
    return max(mlp, attention, experts) + again


def loss_chunk_of(vocab: int, tokens: int, chunk: int) -> int:
    """Positions whose logits exist at a time."""
    return min(tokens, chunk or max(FEWEST, LOGITS // vocab))


def logits_bytes(shape: DecoderShape, work: Work) -> int:
    """What head and loss need as workspace: one chunk of logits in float32, and the gradient of the head, once as a sum
    and, where there are several pieces that are not added at once, once more for the next one."""
    piece = loss_chunk_of(shape.vocab, work.tokens, work.loss_chunk)
    table = 4 * shape.vocab * shape.hidden * (2 if work.apart and piece < work.tokens else 1)
    return 4 * piece * shape.vocab + (table if work.head_trained else 0)


def activations(shape: DecoderShape, work: Work) -> Activations:
    """Saved activations and workspace of one micro-batch."""
    layers = (*shape.layers, *shape.mtp_layers)
    parts = [saved_by_layer(shape.hidden, layer, work) for layer in layers]
    total = {name: sum(part.get(name, 0) for part in parts) for name in saved_names()}
    total["residual"] += 4 * work.tokens * max((layer.head_dim for layer in layers), default=0)  # rotary tables
    updates = 0 if work.recompute == "full" else work.element * work.tokens * work.ranks
    return Activations(
        **total,
        adapter=updates,
        loss=12 * work.tokens * (shape.hidden + 1) * (1 + len(shape.mtp_layers)),
        logits=logits_bytes(shape, work),
        workspace=max((workspace_of_layer(shape.hidden, layer, work) for layer in layers), default=0),
        vision=vision_bytes(shape.vision, work) if shape.vision else 0,
        seeing=seeing_bytes(shape.vision, work) if shape.vision else 0,
        masks=max((masks_bytes(layer, work) for layer in layers), default=0) if work.masks else 0,
    )


def vision_bytes(vision: VisionShape, work: Work) -> int:
    """What tower and joint keep; of a tower that is recomputed, the inputs of its blocks."""
    block = vision.hidden if work.recompute == "full" else vision.block
    tower = vision.depth * block + vision.ends if work.tower else 0
    return work.element * work.patches * (tower + (vision.joint if work.joint else 0))


def seeing_bytes(vision: VisionShape, work: Work) -> int:
    """What exists at a time while tower and joint are at work; with recomputation also the block that is computed again."""
    again = vision.block if work.recompute == "full" and work.tower else 0
    return work.element * work.patches * (vision.passing + again)


def masks_bytes(layer: LayerShape, work: Work) -> int:
    """Masks of packed rows, float32: queries of a key head's group against the keys of their block. How many keys that are
    depends on the samples; this is what samples of a hundred tokens or so make. All layers share them."""
    keys = min(work.length // 2, MASK_KEYS)
    return 4 * BATCHES * work.tokens * keys * (layer.heads // layer.kv_heads)


def saved_names() -> tuple[str, ...]:
    """Operators of a layer."""
    return "residual", "attention", "mlp", "router", "experts"


def cache_bytes(shape: DecoderShape, *, rows: int, length: int, element: int) -> int:
    """Keys and values of ``length`` positions of ``rows`` answers: 2 x layers x key heads x head size x element each."""
    per_position = sum(2 * layer.kv_heads * layer.head_dim for layer in shape.layers)
    return rows * length * per_position * element
