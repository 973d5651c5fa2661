"""Runs a model over evaluation items: the objective's loss per group, and exact match of completions with the reference.

What the scores mean is ``suites.py``; reading rows is ``items.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from erniecore_generation.respond import Completion, Responder
from erniecore_generation.sampling import Sampling

from erniecore.api import DataError, NumericsError
from erniecore.api.data import Conversation, MediaReader, Preference, UnpairedPreference
from erniecore.api.scoring import measure
from erniecore.api.training import collate
from erniecore_eval.suites import (
    Item,
    Score,
    ScoreTable,
    by_group,
    exact_match,
    loss_size,
    rows_of_batches,
    split_prompt,
)

if TYPE_CHECKING:
    from erniecore.api.method import Batch, Objective, Sample
    from erniecore.api.model import ModelBundle


@dataclass(frozen=True, slots=True)
class Generated:
    """A completion and its reference."""

    item: Item
    question: str
    reference: str
    completion: Completion

    @property
    def correct(self) -> bool:
        """Exact match, up to whitespace."""
        return exact_match(self.completion.content, self.reference)


def add_losses(
    table: ScoreTable, items: Sequence[Item], objective: Objective, bundle: ModelBundle, batch_size: int
) -> None:
    """Add loss, tokens and bytes of every group to ``table``; every loss token has the same weight. For an objective whose
    loss is no likelihood (``is_nll = False``), add its metrics instead.

    Raises ``NumericsError`` for a loss that is not finite."""
    for group, members in by_group(items).items():
        table.add(group, _score(members, objective, bundle, batch_size))


def row_losses(items: Sequence[Item], objective: Objective, bundle: ModelBundle) -> list[Score]:
    """The same for every row, each computed by itself: what a row gets does not depend on the others."""
    return [_score([item], objective, bundle, 1) for item in items]


def _score(members: Sequence[Item], objective: Objective, bundle: ModelBundle, batch_size: int) -> Score:
    assert bundle.tokenizer is not None
    samples = [sample for item in members for sample in item.samples]
    tokenizer = bundle.tokenizer
    sums = measure(objective, bundle.model, _batches(samples, batch_size, tokenizer.pad_id, tokenizer.chat_template))
    loss = sums["loss"][0] / sums["loss"][1]
    if not math.isfinite(loss):
        raise NumericsError(
            "the loss is not finite",
            where=members[0].group or "all rows",
            found=str(loss),
            fix="the model overflows: training diverged; use an earlier checkpoint",
        )
    tokens, text_bytes = loss_size(samples, tokenizer)
    score = Score(rows=len(members), tokens=tokens, text_bytes=text_bytes)
    if objective.is_nll:
        score.nll = loss * tokens
    else:
        score.metrics = sums
    return score


def _batches(samples: Sequence[Sample], batch_size: int, pad_id: int, template: Any) -> Iterator[Batch]:
    """With pixels, where samples have images."""
    for rows in rows_of_batches(samples, batch_size):
        batch = collate(rows, pad_id=pad_id)
        yield template.complete(batch, rows) if isinstance(template, MediaReader) else batch


def add_completions(
    table: ScoreTable,
    items: Sequence[Item],
    bundle: ModelBundle,
    *,
    sampling: Sampling,
    max_new_tokens: int,
    batch_size: int,
    speculative: str = "off",
    on_completion: Callable[[Generated], Any] = lambda generated: None,
) -> list[Completion]:
    """Generate the last assistant message of every conversation and count exact matches with the reference.

    Returns all completions. Prompts are sorted by length; the random stream of an item is its index in ``items``.

    Raises:
        DataError: no item has a prompt and a reference. UsageError: a prompt that leaves no room for ``max_new_tokens``.
    """
    assert bundle.tokenizer is not None
    responder = Responder(bundle.model, bundle.tokenizer, generation=bundle.generation, speculative=speculative)
    requests = []
    for index, item in enumerate(items):
        question = split_prompt(item.record)
        if question is not None:
            tools = item.record.tools if isinstance(item.record, Conversation | Preference | UnpairedPreference) else ()
            requests.append((index, item, question, responder.encode(question[0], tools)))
    if not requests:
        raise DataError("no row has a prompt and a reference", expected="conversations that end with the assistant")
    requests.sort(key=lambda entry: len(entry[3].ids))
    completions = responder.iter_completions(
        [entry[3] for entry in requests],
        sampling=sampling,
        max_new_tokens=max_new_tokens,
        streams=[entry[0] for entry in requests],
        batch_size=batch_size,
    )
    found = []
    for position, completion in completions:
        found.append(completion)
        _, item, (messages, reference), _ = requests[position]
        generated = Generated(item, messages[-1].content, reference.content, completion)
        table.add(item.group, Score(generated=1, correct=int(generated.correct)))
        on_completion(generated)
    return found
