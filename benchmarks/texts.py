"""Text for benchmarks that every machine has: the doc strings of Python's own library, as conversations in JSON Lines."""

from __future__ import annotations

import ast
import json
import random
import sysconfig
import warnings
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def paragraphs() -> list[str]:
    """Some ten thousand paragraphs of English with some code."""
    found = []
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(p for p in root.rglob("*.py") if "site-packages" not in p.parts):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                found += [p for p in (ast.get_docstring(node) or "").split("\n\n") if 40 < len(p) < 2000]
    return found


def write_conversations(path: Path, size: int, seed: int = 0) -> int:
    """About ``size`` bytes; returns the number of rows. No two rows are alike."""
    rng = random.Random(seed)
    texts = paragraphs()
    done = rows = 0
    with path.open("w", encoding="utf-8") as stream:
        while done < size:
            messages = []
            for _ in range(1 + (rng.random() < 0.3)):
                question = f"{rng.choice(texts)} ({rng.randrange(10**6)})"
                answer = " ".join(rng.choices(texts, k=rng.choice((1, 1, 2, 3))))
                messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            line = json.dumps({"messages": messages}, ensure_ascii=False) + "\n"
            done, rows = done + len(line.encode()), rows + 1
            stream.write(line)
    return rows


def write_text(path: Path) -> Path:
    """All paragraphs, to train a tokenizer on."""
    path.write_text("\n".join(paragraphs()), encoding="utf-8")
    return path
