"""Tokenizes a file of conversations with Hugging Face ``datasets.map``: one JSON line. Runs in its own environment.

``--kind ids``: text of the chat template to ids and nothing else, the least that can be done. ``labels``: ids of prompt
and of the whole conversation, labels behind the prompt, as training needs them. ``--tokenizer fast``: transformers' one
from the model directory; ``sentencepiece``: the model file itself, as erniecore uses it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--kind", choices=["ids", "labels"], default="ids")
    parser.add_argument("--tokenizer", choices=["fast", "sentencepiece"], default="fast")
    args = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["HF_HUB_OFFLINE"] = "1"
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    encode = fast_encoder(tokenizer) if args.tokenizer == "fast" else piece_encoder(args.model)

    def render(messages: Any, *, prompt: bool = False) -> str:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)

    def ids(batch: Any) -> dict[str, Any]:
        return {"input_ids": encode([render(m) for m in batch["messages"]])}

    def labels(batch: Any) -> dict[str, Any]:
        full = encode([render(m) for m in batch["messages"]])
        prompts = encode([render(m[:-1], prompt=True) for m in batch["messages"]])
        masked = [[-100] * len(p) + f[len(p) :] for p, f in zip(prompts, full, strict=True)]
        return {"input_ids": full, "labels": masked}

    with tempfile.TemporaryDirectory() as cache:
        started = time.perf_counter()
        rows = datasets.load_dataset("json", data_files=args.file, split="train", cache_dir=cache)
        loaded = time.perf_counter()
        work = ids if args.kind == "ids" else labels
        done = rows.map(
            work, batched=True, num_proc=args.workers if args.workers > 1 else None, remove_columns=rows.column_names
        )
        seconds = time.perf_counter() - loaded
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        facts = {
            "seconds": round(seconds, 2),
            "load_s": round(loaded - started, 2),
            "rows": len(done),
            "cpu_s": round(sum(u.ru_utime + u.ru_stime for u in usages), 2),
            "first_ids": done[0]["input_ids"][:16],
        }
    print(json.dumps(facts))


def fast_encoder(tokenizer: Any) -> Any:
    """Texts to ids by transformers."""
    return lambda texts: tokenizer(texts, add_special_tokens=False)["input_ids"]


def piece_encoder(model: str) -> Any:
    """Texts to ids by SentencePiece. Control tokens are cut out as its ``encode`` does not know them."""
    import re

    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(Path(model) / "tokenizer.model"))
    control = {processor.id_to_piece(i): i for i in range(processor.get_piece_size()) if processor.is_control(i)}
    parts = re.compile("(" + "|".join(map(re.escape, control)) + ")")

    def encode(texts: list[str]) -> list[list[int]]:
        out = []
        for text in texts:
            found: list[int] = []
            for part in parts.split(text):
                if part:
                    found += [control[part]] if part in control else processor.encode(part)
            out.append(found)
        return out

    return encode


if __name__ == "__main__":
    main()
