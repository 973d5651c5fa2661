"""One model on the rows of data files: opens it, reads and encodes the rows, and measures what is asked for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore_generation import options as generation_options

from erniecore.api import UsageError
from erniecore.api.data import messages_of
from erniecore.api.method import MethodCapability, MethodConfig
from erniecore_eval.report_file import rows_sha256

if TYPE_CHECKING:
    from erniecore.api import Plugin
    from erniecore.api.installation import Host
    from erniecore.api.model import ModelBundle
    from erniecore.api.rows import RowStatistics
    from erniecore_eval.asked import Asked
    from erniecore_eval.compared import ScoredRow
    from erniecore_eval.scoring import Generated
    from erniecore_eval.suites import Item, ScoreTable


@dataclass(frozen=True, slots=True)
class Measured:
    """Scores by group, what was read, what the scores depend on; what each row got, and hashes, where they were asked for."""

    table: ScoreTable
    statistics: RowStatistics
    facts: dict[str, Any]
    rows: list[ScoredRow]
    hashes: dict[str, str]


def measure_model(model: Path, asked: Asked) -> Measured:
    """Everything that was asked of one model.

    Raises:
        UsageError: no such model or method. DataError: rows that cannot be used. NumericsError: a loss that is not finite.
    """
    host, plugin = _method(asked.method, asked.reference)
    bundle, _ = generation_options.open_model(model, asked.device, asked.adapter, speculative=asked.speculative)
    limits = {"group_by": asked.group_by, "limit": asked.limit, "seed": asked.seed, "default_format": asked.format}
    items, statistics = _items(host, plugin, bundle, list(asked.data), asked.max_seq_len, **limits)
    from erniecore_eval import scoring
    from erniecore_eval.sample_files import row_of_score
    from erniecore_eval.suites import ScoreTable

    table = ScoreTable()
    objective = _objective(host, plugin, bundle, asked.reference, asked.device)
    scores = scoring.row_losses(items, objective, bundle) if asked.by_row else []
    for item, score in zip(items, scores, strict=False):
        table.add(item.group, score)
    if not asked.by_row:
        scoring.add_losses(table, items, objective, bundle, asked.batch_size)
    right: dict[int, bool] = {}
    if asked.generate:
        keep = _keep(asked.completions)

        def on_completion(generated: Generated) -> None:
            right[id(generated.item)] = generated.correct
            keep(generated)

        how: dict[str, Any] = {"max_new_tokens": asked.max_new_tokens, "batch_size": asked.batch_size}
        how |= {"sampling": asked.sampling, "speculative": asked.speculative}
        found = scoring.add_completions(table, items, bundle, on_completion=on_completion, **how)
        generation_options.note_acceptance(asked.speculative, found)
    pairs = enumerate(zip(items, scores, strict=False))
    rows = [row_of_score(index, item, score, right.get(id(item))) for index, (item, score) in pairs]
    facts = _facts(bundle, model, asked.method, asked.seed)
    return Measured(table, statistics, facts, rows, _hashes(model, asked, items) if asked.hashed else {})


def _method(name: str, reference: Path | None) -> tuple[Host, Plugin]:
    """The method plugin. Raises ``UsageError`` where a reference model is missing or not supported."""
    from erniecore.api.installation import assemble, load

    plugin = load("method", name)
    if MethodCapability.REWARDS in plugin.capabilities:
        raise UsageError(
            "this method has no loss on given responses",
            where="--method",
            found=name,
            fix="measure exact match with --method sft --generate; a run scores its validation set (data.eval)",
        )
    compares = MethodCapability.REFERENCE in plugin.capabilities
    if reference is None and compares and not _reference_optional(plugin):
        raise UsageError(
            "this method needs a reference model",
            where="--method",
            found=name,
            fix="name its directory with --reference",
        )
    if reference is not None and not compares:
        raise UsageError("this method takes no reference model", where="--reference", fix="leave it out")
    return assemble({"method": plugin}), plugin


def _reference_optional(plugin: Plugin) -> bool:
    """Whether the method's loss can be computed without a reference model."""
    return issubclass(plugin.Config, MethodConfig) and plugin.Config.reference_optional


def _objective(host: Host, plugin: Plugin, bundle: ModelBundle, reference: Path | None, device: str) -> Any:
    against = None if reference is None else generation_options.open_model(reference, device)[0].model
    parts = {"policy": bundle.model, "reference": against, "tokenizer": bundle.tokenizer}
    return host.call(plugin, "ernie_build_objective", config=plugin.Config(), **parts)


def _items(
    host: Host, plugin: Plugin, bundle: ModelBundle, files: list[str], max_seq_len: int, **options: Any
) -> tuple[list[Item], RowStatistics]:
    """The rows of the files, encoded; a row longer than the model's context is truncated as the method truncates."""
    from erniecore.api.rows import Source
    from erniecore_eval.items import read_items

    length = min(max_seq_len, int(bundle.architecture.get("max_position_embeddings") or max_seq_len))
    given = {"config": plugin.Config(), "tokenizer": bundle.tokenizer, "max_length": length, "too_long": "auto"}
    encoder = host.call(plugin, "ernie_build_encoder", **given)
    return read_items([Source(path=file) for file in files], encoder, **options)


def _keep(file: Path | None) -> Callable[[Generated], None]:
    """A callback that appends each completion to ``file``, if there is one."""
    if file is None:
        return lambda generated: None
    try:
        file.write_text("", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            "cannot write the completions",
            where=str(file),
            found=str(error.strerror),
            fix="name a file in an existing directory that you may write to",
        ) from error

    def keep(generated: Generated) -> None:
        row: dict[str, Any] = {
            "group": generated.item.group,
            "question": generated.question,
            "reference": generated.reference,
            "completion": generated.completion.content,
            "correct": generated.correct,
            "finish_reason": generated.completion.finish_reason,
        }
        for media in (media for message in messages_of(generated.item.record) for media in message.media):
            row.setdefault(f"{media.kind}s", []).append(list(media.frames) or media.source)
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(row, ensure_ascii=False) + "\n")

    return keep


def _hashes(model: Path, asked: Asked, items: list[Item]) -> dict[str, str]:
    """sha256 of all files of the model and of what the rows mean."""
    from erniecore_generation.model_hash import model_hash

    return {"model_sha256": model_hash(model, asked.adapter), "rows_sha256": rows_sha256(items)}


def _facts(bundle: ModelBundle, model: Path, method: str, seed: int) -> dict[str, Any]:
    """What a score depends on besides the data, for the JSON report."""
    template = bundle.tokenizer.chat_template if bundle.tokenizer is not None else None
    source = template.source if template is not None else ""
    return {
        "model": str(model),
        "method": method,
        "seed": seed,
        "template_sha256": hashlib.sha256(source.encode()).hexdigest(),
    }
