"""``ernie eval``: loss, bits per byte and exact answers of a model on data files, by group."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from erniecore.cli import answering, render
from erniecore.cli.answering import Adapter, Device, Model, Speculative, Temperature, TopP
from erniecore.cli.options import JsonOption
from erniecore.errors import UsageError

if TYPE_CHECKING:
    from erniecore.data.ledger import Ledger
    from erniecore.engine.scoring.scoring import Answered
    from erniecore.engine.scoring.suites import Board, Item, Score
    from erniecore.host import Host
    from erniecore.plugin import Plugin
    from erniecore.types import ModelBundle

_Format = Annotated[str, typer.Option("--format", metavar="NAME", help="Format of the data.")]
_Method = Annotated[str, typer.Option("--method", metavar="NAME", help="Whose encoding and loss to use.")]
_Limit = Annotated[
    int, typer.Option("--limit", "--max-samples", min=0, metavar="N", help="So many rows, drawn with --seed; 0: all.")
]
_GroupBy = Annotated[
    str, typer.Option("--group-by", metavar="FIELD", help="Field of the rows [task, if they have it].")
]
_Reference = Annotated[
    Path | None,
    typer.Option(
        "--reference", metavar="DIR", help="Model that a preference method compares with; none: a uniform one."
    ),
]
_Answers = Annotated[Path | None, typer.Option("--answers", metavar="FILE", help="Write each answer as a JSON line.")]


def evaluate(
    model: Model,
    data: Annotated[list[str], typer.Option("--data", metavar="FILE", help="Data file; may be repeated.")],
    format: _Format = "auto",
    method: _Method = "sft",
    reference: _Reference = None,
    limit: _Limit = 0,
    group_by: _GroupBy = "",
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Rows at a time.")] = 8,
    max_seq_len: Annotated[int, typer.Option("--max-seq-len", min=2, help="Tokens per row.")] = 2048,
    answer: Annotated[bool, typer.Option("--generate", help="Also answer the last question of each row.")] = False,
    answers: _Answers = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="Longest answer.")] = 64,
    temperature: Temperature = None,
    top_p: TopP = None,
    speculative: Speculative = "off",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the choice of rows and of random draws.")] = 0,
    adapter: Adapter = None,
    device: Device = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Loss, perplexity and bits per byte over the learned tokens; with --generate also exact match of the answers.

    With a preference method (--method dpo): its metrics, such as the share of pairs whose preferred answer is likelier.
    Rates come with their number of rows and Wilson's 95 % interval.
    """
    if answers is not None and not answer:
        raise UsageError("--answers needs --generate", fix="add --generate, which makes the answers")
    sampling = answering.sampling_from({}, seed, temperature=temperature, top_p=top_p)
    host, plugin = _method(method, reference)
    bundle, _ = answering.open_model(model, device, adapter, speculative=speculative)
    limits = {"group_by": group_by, "limit": limit, "seed": seed}
    items, ledger = _items(host, plugin, bundle, data, max_seq_len, default_format=format, **limits)
    from erniecore.engine.scoring import scoring
    from erniecore.engine.scoring.suites import Board

    board = Board()
    objective = _objective(host, plugin, bundle, reference, device)
    scoring.add_losses(board, items, objective, bundle, batch_size)
    if answer:
        how: dict[str, Any] = {"max_new_tokens": max_new_tokens, "batch_size": batch_size, "speculative": speculative}
        answered = scoring.add_answers(board, items, bundle, sampling=sampling, on_answer=_keep(answers), **how)
        answering.note_guesses(speculative, answered)
    show(board, ledger, _facts(bundle, model, method, seed), as_json=as_json)


def _method(name: str, reference: Path | None) -> tuple[Host, Plugin]:
    """The method plugin. Raises ``UsageError`` where a reference model is missing, or has no use."""
    from erniecore import registry
    from erniecore.host import assemble

    plugin = registry.load("method", name)
    if "scorers" in plugin.capabilities:
        raise UsageError(
            "this method has no loss of given answers",
            where="--method",
            found=name,
            fix="count right answers with --method sft --generate; held-out rows are scored during a run (data.eval)",
        )
    compares = "reference" in plugin.capabilities
    if reference is None and compares and "reference_free" not in plugin.Config.model_fields:
        raise UsageError(
            "this method needs a reference model",
            where="--method",
            found=name,
            fix="name its directory with --reference",
        )
    if reference is not None and not compares:
        raise UsageError("this method compares with no reference model", where="--reference", fix="leave it out")
    return assemble({"method": plugin}), plugin


def _objective(host: Host, plugin: Plugin, bundle: ModelBundle, reference: Path | None, device: str) -> Any:
    against = None if reference is None else answering.open_model(reference, device)[0].model
    parts = {"policy": bundle.model, "reference": against, "tokenizer": bundle.tokenizer}
    return host.call(plugin, "ernie_build_objective", config=plugin.Config(), **parts)


def _items(
    host: Host, plugin: Plugin, bundle: ModelBundle, files: list[str], max_seq_len: int, **options: Any
) -> tuple[list[Item], Ledger]:
    """The rows of the files, encoded; a row longer than the model's context is cut as the method cuts."""
    from erniecore.config.core import Source
    from erniecore.engine.scoring.eval_items import read_items

    length = min(max_seq_len, int(bundle.architecture.get("max_position_embeddings") or max_seq_len))
    given = {"config": plugin.Config(), "tokenizer": bundle.tokenizer, "max_length": length}
    encoder = host.call(plugin, "ernie_build_encoder", **given)
    return read_items([Source(path=file) for file in files], encoder, **options)


def _keep(file: Path | None) -> Callable[[Answered], None]:
    """Writes each answer to ``file``, if there is one."""
    if file is None:
        return lambda answered: None
    try:
        file.write_text("", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            "cannot write the answers",
            where=str(file),
            found=str(error.strerror),
            fix="name a file in an existing directory that you may write to",
        ) from error

    def keep(answered: Answered) -> None:
        row = {
            "group": answered.item.group,
            "question": answered.question,
            "reference": answered.reference,
            "answer": answered.completion.content,
            "correct": answered.correct,
            "finish_reason": answered.completion.finish_reason,
        }
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(row, ensure_ascii=False) + "\n")

    return keep


def _facts(bundle: ModelBundle, model: Path, method: str, seed: int) -> dict[str, Any]:
    """What a score depends on besides the rows."""
    template = bundle.tokenizer.chat_template if bundle.tokenizer is not None else None
    source = template.source if template is not None else ""
    return {
        "model": str(model),
        "method": method,
        "seed": seed,
        "template_sha256": hashlib.sha256(source.encode()).hexdigest(),
    }


def show(board: Board, ledger: Ledger, facts: dict[str, Any], *, as_json: bool) -> None:
    """The scores as a table, or as one JSON object."""
    if as_json:
        groups = {name: score.as_json() for name, score in board.groups.items()}
        account = {"dropped": ledger.total("dropped"), "errors": ledger.errors}
        render.show_json({**facts, **account, **board.total.as_json(), "groups": groups})
        return
    named = {name or "-": score for name, score in board.groups.items()}
    if board.total.metrics:
        columns = {**(named if len(named) > 1 else {}), "all": board.total}
        lines = [[m, *(f"{s.means.get(m, math.nan):.4f}" for s in columns.values())] for m in board.total.means]
        render.show_table(["metric", *columns], lines)
        return _note_dropped(ledger)
    rows = [row_of(name, score) for name, score in named.items()] if len(named) > 1 else []
    render.show_table(
        ["group", "rows", "tokens", "loss", "perplexity", "bits/byte", "exact", "95 %"],
        [*rows, row_of("all", board.total)],
    )
    _note_dropped(ledger)


def _note_dropped(ledger: Ledger) -> None:
    if dropped := ledger.total("dropped"):
        first = ledger.errors[0] if ledger.errors else {}
        render.note(
            f"note: {dropped} of {ledger.total('rows')} rows were dropped; the first: "
            f"{first.get('file')}:{first.get('line')} {first.get('message')}"
        )


def row_of(name: str, score: Score) -> list[str]:
    """A line of the table."""
    exact = score.as_json().get("exact_match")
    measured = [score.loss, score.perplexity, score.bits_per_byte]
    return [
        name,
        str(score.rows),
        str(score.tokens),
        *("-" if value is None else f"{value:.4f}" for value in measured),
        f"{exact['correct']}/{exact['n']} = {exact['score']:.3f}" if exact else "-",
        f"{exact['low']:.3f} to {exact['high']:.3f}" if exact else "-",
    ]
