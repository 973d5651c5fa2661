"""Models, prompts and data of ``benchmarks.real_sizes``, and what the weights of a model directory weigh."""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.watched import ernie


@dataclass(frozen=True)
class Size:
    """A model to measure.

    Attributes:
        model: plugin. architecture: ``--size`` of ``ernie model init``. shard: most bytes of a file of weights.
        quantizers: forms that are measured by default. prompts, length: tokens of prompts and of training rows.
        read_gib: memory over which the read rate is measured. part: what ``ernie extract`` takes of it.
    """

    name: str
    model: str
    architecture: str
    shard: str
    quantizers: tuple[str, ...]
    prompts: tuple[int, ...] = (256, 2048)
    length: int = 512
    read_gib: float = 1.5
    part: tuple[str, ...] = ()


_TINY = "hidden_size=64,intermediate_size=128,num_hidden_layers=4,num_attention_heads=8,num_key_value_heads=4,vocab_size=512"
_TINY += ",moe_num_experts=8,moe_k=2,moe_intermediate_size=32,moe_layer_start_index=1,moe_layer_end_index=3"
_TINY += ",max_position_embeddings=4096"
_MOE = ("wint4-8", "wint4")
_FOUR = "num_hidden_layers=4,moe_layer_end_index=3"


_DENSE_1B = "hidden_size=2048,intermediate_size=8192,num_hidden_layers=16,num_attention_heads=16,num_key_value_heads=4"
_MOE_1B = "hidden_size=1024,num_attention_heads=8,intermediate_size=4096,num_hidden_layers=12,moe_layer_end_index=11"
_MOE_1B += ",moe_num_experts=32,moe_intermediate_size=768"


def _part(depth: int, experts: int, k: int) -> tuple[str, ...]:
    return "--depth", str(depth), "--experts", str(experts), "--k", str(k)


SIZES = {
    size.name: size
    for size in (
        Size("0.3b", "ernie45", "0.3b,vocab_size=103424", "2GB", ("bf16", "wint8", "wint4"), part=("--depth", "12")),
        Size("21b", "ernie45-moe", "21b-a3b,vocab_size=103424", "2GB", _MOE, read_gib=3.0, part=_part(8, 32, 3)),
        Size("21b-4", "ernie45-moe", f"21b-a3b,vocab_size=103424,{_FOUR}", "2GB", _MOE, part=_part(3, 32, 3)),
        Size("1b", "ernie45", f"0.3b,vocab_size=103424,{_DENSE_1B}", "2GB", ("wint8", "wint4"), length=64),
        Size("1b-moe", "ernie45-moe", f"21b-a3b,vocab_size=103424,{_MOE_1B}", "2GB", _MOE, length=64),
        Size("tiny", "ernie45-moe", _TINY, "100KB", ("wint4-8",), (24,), 64, 0.05, _part(3, 4, 1)),
    )
}
_SHARED = "wint4-8", "int8=self_attn.*_proj,mlp.gate_proj,mlp.up_proj,mlp.down_proj,mlp.shared_experts.*"
#: name of a form of weights -> the quantizer and its settings, for those that are no quantizer's name
FORMS = {
    "wint4-8-shared": _SHARED,
    "wint4-8-shared-head": (*_SHARED, "head=int8"),
    **{f"{quantizer}-head": (quantizer, "head=int8") for quantizer in ("wint8", "wint4", "wint4-8")},
}
_HYBRID = "--parallel hybrid"
_DENSE = {
    "tensor": f"{_HYBRID} parallel.tensor=4 train.accumulation=1",
    "pipeline": f"{_HYBRID} parallel.pipeline=4 train.accumulation=4",
    "stage 3": f"{_HYBRID} parallel.sharding=4 parallel.sharding_stage=3 train.accumulation=1",
}
#: model plugin -> name of a layout of four processes -> its settings
LAYOUTS = {
    "ernie45": _DENSE,
    "ernie45-moe": {**_DENSE, "expert": f"{_HYBRID} parallel.data=4 parallel.expert=4 train.accumulation=1"},
}


def make_data(home: Path) -> None:
    """Rows and pairs with long answers, and a tokenizer, where they are not there."""
    if (home / "tok").exists():
        return
    draw = random.Random(1)
    texts = [" ".join(str(draw.randrange(1000)) for _ in range(400)) for _ in range(400)]
    rows = [{"instruction": "go", "output": text} for text in texts]
    pairs = [{"instruction": "go", "chosen": a, "rejected": b} for a, b in zip(texts[::2], texts[1::2], strict=True)]
    for name, found in (("rows", rows), ("pairs", pairs)):
        (home / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")
    done = ernie(["tokenizer", "train", "rows.jsonl", "--vocab-size", "296", "--out", "tok"], home)
    if done.code:
        raise RuntimeError(f"ernie tokenizer train: {done.err.strip()[-600:]}")


def prompt_of(tokenizer: Path, tokens: int) -> str:
    """Text of so many tokens."""
    from erniecore_text.tokenizer import SentencePieceTokenizer

    made, draw = SentencePieceTokenizer.from_directory(tokenizer), random.Random(2)
    text = " ".join(str(draw.randrange(1000)) for _ in range(tokens))
    low, high = 1, len(text)
    while low < high:  # the shortest beginning with so many tokens
        middle = (low + high) // 2
        low, high = (low, middle) if len(made.encode(text[:middle])) >= tokens else (middle + 1, high)
    return text[:low]


def stored(directory: Path) -> Iterator[tuple[str, int]]:
    """(name, bytes) of every tensor of a model directory, from the headers of its files."""
    for file in sorted(directory.glob("*.safetensors")):
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            header: dict[str, Any] = json.loads(opened.read(length))
        for name, entry in header.items():
            if name != "__metadata__":
                yield name, entry["data_offsets"][1] - entry["data_offsets"][0]


def largest_bytes(directory: Path) -> int:
    """Bytes of the largest tensor in float32, of files in bfloat16."""
    return 2 * max(size for _, size in stored(directory))


def weight_bytes(directory: Path) -> int:
    """Bytes of the files of weights."""
    return sum(file.stat().st_size for file in directory.glob("*.safetensors"))


def token_bytes(directory: Path) -> float:
    """Bytes of weights that one new token reads, in the form in which the files have them: of the routed experts those that are
    selected, of an embedding that is not the head too one row, nothing of multi-token prediction."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    share = config.get("moe_k", 0) / config["moe_num_experts"] if config.get("moe_num_experts") else 0.0
    tied, found = config.get("tie_word_embeddings", False), 0.0
    for name, size in stored(directory):
        if re.search(r"\bmtp_", name):
            continue
        if "embed_tokens" in name:
            found += size if tied else size / config["vocab_size"]
        else:
            found += size * share if re.search(r"\.experts\.", name) else size
    return found
