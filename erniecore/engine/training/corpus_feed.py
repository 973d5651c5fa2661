"""What a run trains on when its data are token files: the checks, the plans and the account. Rows of text files are
``feed.py``; token files are already tokenised, so nothing of them is read before it is used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.checkpoint.files import translated
from erniecore.data import codes
from erniecore.data.corpus import CorpusPlan, TokenSpan, split_tail
from erniecore.data.encode import encode
from erniecore.data.loader import BatchPlan, DataPlan, LoaderSettings
from erniecore.data.sources import resolve
from erniecore.data.token_files import TokenFile, files_of, open_token_file, prefixes_of
from erniecore.durable import file_hash, replace_file
from erniecore.engine.training.guards import check_store
from erniecore.errors import DataError
from erniecore.types import Document, Encoder

if TYPE_CHECKING:
    from erniecore.config.core import DataSection, Source
    from erniecore.engine.preparation.prepare import Prepared
    from erniecore.engine.training.feed import Feed
    from erniecore.types import Tokenizer

#: larger files are identified by their size and this many pieces
_WHOLE, _PIECES, _PIECE = 1 << 30, 256, 1 << 20


def names_token_files(data: DataSection) -> bool:
    """Whether any training or held-out source is a pair of token files, or a directory of such."""
    return any(prefixes_of(source.path) for source in (*data.train, *data.eval))


def build_corpus_feed(ready: Prepared, tokenizer: Tokenizer) -> Feed:
    """Open and check the token files; writes ``data_report.json``.

    Raises:
        DataError: the method does not learn from documents, other files among the token files, a damaged file, ids
            beyond the model's vocabulary.
    """
    from erniecore.engine.training.feed import Feed

    data, settings = ready.settings.data, ready.settings
    encoder = ready.host.hook.ernie_build_encoder(
        config=settings.method, tokenizer=tokenizer, max_length=data.max_seq_len
    )
    check_use(data, encoder, ready.names["method"])
    vocab_size = int(ready.architecture["vocab_size"])
    train, held = split(data, vocab_size)
    plan = CorpusPlan(train, training(settings), seed=settings.run.seed, pad_id=tokenizer.pad_id, **_place(ready))
    held_plan, report = held_out_plan(ready, tokenizer, encoder, held)
    summary = [f"train: {_line(train)}; {plan.num_samples} samples of {data.max_seq_len}"]
    if held_plan is not None:
        summary.append(f"eval: {_line(held) + '; ' if held else ''}{held_plan.num_samples} samples")
    if ready.cluster.rank == 0:
        full = {"train": _account(train, plan.num_samples), **report, "fill_rate": plan.fill_rate()}
        with translated(ready.out, "writing data_report.json"):
            text = json.dumps(full, indent=1, ensure_ascii=False) + "\n"
            replace_file(ready.out / "data_report.json", text.encode())
    warnings = []
    if data.eval_fraction and not data.eval and not held:
        warnings.append("data.eval_fraction holds out nothing: there are too few documents")
    return Feed(
        plan,
        held_plan,
        total_steps=settings.train.max_steps or plan.total_steps(settings.train.epochs),
        files=[identify(path) for span in train for path in files_of(span.file.prefix)],
        summary=summary,
        warnings=warnings,
    )


def check_use(data: DataSection, encoder: Encoder, method: str) -> None:
    """Raise where token files cannot be used in this way."""
    if Document not in encoder.accepts:
        raise DataError(
            f"method {method} cannot learn from token files",
            code=codes.NOT_FOR_TOKEN_FILES,
            where=next(s.path for s in (*data.train, *data.eval) if prefixes_of(s.path)),
            found="documents that are tokens already",
            expected=" or ".join(t.__name__ for t in encoder.accepts),
            fix="use --method pt, or data of a format that this method learns from",
        )
    others = [source.path for source in data.train if not prefixes_of(source.path)]
    if others or not data.train:
        raise DataError(
            "token files cannot be trained on or evaluated with beside other training files",
            code=codes.NOT_FOR_TOKEN_FILES,
            where="data.train",
            found=", ".join(others) or "nothing",
            fix="make token files of the others too: ernie data build FILE --tokenizer DIR --out PREFIX",
        )
    if len({bool(prefixes_of(source.path)) for source in data.eval}) > 1:
        raise DataError(
            "data.eval names token files and others",
            code=codes.NOT_FOR_TOKEN_FILES,
            where="data.eval",
            fix="evaluate on token files only, or on other files only",
        )


def training(settings: Any) -> LoaderSettings:
    """How the run mixes and deals; the pairs of a directory share its weight by their size."""
    made = LoaderSettings.training(settings.data, settings.train)
    weights, epochs = [], []
    for source in settings.data.train:
        sizes = [files_of(prefix)[0].stat().st_size for prefix in prefixes_of(source.path)]
        weights += [source.weight * size / sum(sizes) if len(sizes) > 1 else source.weight for size in sizes]
        epochs += [source.epochs] * len(sizes)
    return replace(made, mix=replace(made.mix, weights=tuple(weights), epochs=tuple(epochs)))


def split(data: DataSection, vocab_size: int) -> tuple[list[TokenSpan], list[TokenSpan]]:
    """Training and held-out part of the training files, by ``data.eval_fraction`` unless ``data.eval`` names others."""
    train, held = [], []
    for file in _opened(data.train, vocab_size):
        fraction = 0.0 if data.eval else data.eval_fraction
        span, tail = split_tail(file, fraction) if fraction else (TokenSpan.whole(file), None)
        train.append(_long_enough(span))
        if tail is not None and tail.num_tokens > 1:
            held.append(tail)
    if data.eval and all(prefixes_of(source.path) for source in data.eval):
        held = [_long_enough(TokenSpan.whole(file)) for file in _opened(data.eval, vocab_size)]
    return train, held


def _opened(sources: Sequence[Source], vocab_size: int) -> list[TokenFile]:
    files = [open_token_file(prefix) for source in sources for prefix in prefixes_of(source.path)]
    for file in files:
        file.check_ids(vocab_size)
    return files


def _long_enough(span: TokenSpan) -> TokenSpan:
    if span.num_tokens < 2:
        raise DataError(
            "there is no token to predict",
            code=codes.NOTHING_LEFT,
            where=str(files_of(span.file.prefix)[0]),
            found=f"{span.num_tokens} token",
            expected="at least 2",
        )
    return span


def held_out_plan(
    ready: Prepared, tokenizer: Tokenizer, encoder: Encoder, held: Sequence[TokenSpan]
) -> tuple[BatchPlan | None, dict[str, Any]]:
    """What is evaluated, in order, and its account: token files, or rows of ``data.eval``."""
    data, settings = ready.settings.data, ready.settings
    evaluation = LoaderSettings.evaluation(data, settings.eval.batch_size or settings.train.batch_size)
    common = {"seed": settings.run.seed, "pad_id": tokenizer.pad_id, **_place(ready)}
    if held:
        plan = CorpusPlan(held, evaluation, **common)
        return plan, {"eval": _account(held, plan.num_samples)}
    if not data.eval:
        return None, {}
    store, ledger = encode(resolve(data.eval, data.format, settings.formats), encoder, workers=data.workers)
    ledger.check(data.max_drop)
    check_store(store, int(ready.architecture["vocab_size"]))
    return DataPlan(store, evaluation, **common), {"eval": ledger.as_dict()}


def identify(path: Path) -> dict[str, Any]:
    """``path``, ``bytes`` and ``sha256`` of a file; above a gibibyte the hash is over the size and pieces of it."""
    size = path.stat().st_size
    if size <= _WHOLE:
        return {"path": str(path), "bytes": size, "sha256": file_hash(path)}
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as stream:
        for i in range(_PIECES):
            stream.seek((size - _PIECE) * i // (_PIECES - 1))
            digest.update(stream.read(_PIECE))
    return {"path": str(path), "bytes": size, "sha256": digest.hexdigest()}


def _place(ready: Prepared) -> dict[str, int]:
    place = ready.parallel_plan
    return {"data_rank": place.data_rank, "data_size": place.data_size}


def _line(spans: Sequence[TokenSpan]) -> str:
    documents, tokens = sum(s.num_documents for s in spans), sum(s.num_tokens for s in spans)
    return f"{documents} documents, {tokens} tokens (token files)"


def _account(spans: Sequence[TokenSpan], samples: int) -> dict[str, Any]:
    """As a ledger's account: every document is a row, and all are kept."""
    files = {
        str(files_of(s.file.prefix)[0]): {"rows": s.num_documents, "kept": s.num_documents, "tokens": s.num_tokens}
        for s in spans
    }
    rows = sum(part["rows"] for part in files.values())
    tokens = sum(part["tokens"] for part in files.values())
    counts = {"rows": rows, "kept": rows, "truncated": 0, "dropped": 0, "samples": samples, "tokens": tokens}
    return {**counts, "reasons": {}, "errors": [], "files": files}
