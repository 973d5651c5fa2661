"""The loss of ERNIE 3.0's pre-training: the sum of the objectives' own means over the whole step,

    L = sum over objectives o of (1 / N_o) sum over targets of o of -log p(target)

N_o: tokens that are to be found (kmlm, uktp), next tokens (document), or samples (reorder, distance) of the whole step, on all
micro-batches and ranks. An objective that no sample of the step was drawn for adds nothing.

Letters: A examples, S positions, H hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import paddle  # noqa: TID253
import paddle.nn.functional as F  # noqa: TID253
from erniecore_progressive.schedule import fewer
from numpy.typing import NDArray

from erniecore.api import ConfigError, PluginError, ops
from erniecore.api.method import IGNORE, Batch, LossOutput, Objective, Tokenizer
from erniecore_ernie3_pretrain.config import DISTANCE, DOCUMENT, REORDER, TASKS, Ernie3PretrainConfig
from erniecore_ernie3_pretrain.drawing import examples_of, pool_of, seeded
from erniecore_ernie3_pretrain.growth import Growth
from erniecore_ernie3_pretrain.tasks import Draw, Example

if TYPE_CHECKING:
    from paddle import Tensor

    Metrics = dict[str, tuple[Tensor | float, float]]

CHOICES = (REORDER, DISTANCE)


@runtime_checkable
class TaskModel(Protocol):
    """A model with the task modules of ERNIE 3.0; see ``erniecore_ernie3.model``.

    Attributes:
        nlu: the module for understanding, or None. heads: its classifiers. arch: with ``max_segments``.
    """

    nlu: Any
    heads: Any
    arch: Any

    def understand(self, input_ids: Tensor, *, attention_mask: Tensor | None = None) -> Tensor:
        """Hidden states [A, S, H] that attend to both sides."""
        ...

    def recur(
        self, input_ids: Tensor, *, memory: Any = None, start: int = 0, attention_mask: Tensor | None = None
    ) -> Any:
        """Hidden states of a segment behind a memory, and the memory for the next."""
        ...


class Ernie3Objective(Objective):
    """See ``erniecore.api.method.Objective``.

    Args:
        policy: an ``ernie3`` model; for document language modeling of whole samples any ``CausalLM``.

    Attributes:
        growth: how long length, batch and dropout grow, and from what. stage: where they are in the present step; held-out text
            is read at full length.

    Raises:
        PluginError: the model lacks what an objective needs. ConfigError: the tokenizer has no mask token.
    """

    def __init__(self, config: Ernie3PretrainConfig, policy: Any, tokenizer: Tokenizer) -> None:
        self.policy, self.length, self.weights = policy, config.segment_length, config.weights()
        self.growth = Growth(config, policy)
        self.stage = self.growth.end
        self.is_nll = not any(weight for task, weight in self.weights.items() if task != DOCUMENT)
        _check_model(policy, self.weights, self.length)
        special = set(tokenizer.special_tokens.values())
        mask = tokenizer.special_tokens.get(config.mask_token, -1)
        if mask < 0 and not self.is_nll:
            known = ", ".join(list(tokenizer.special_tokens)[:12])
            raise ConfigError.at(
                "method.mask_token", f"the tokenizer has no special token {config.mask_token!r}: {known}"
            )
        self.draw = Draw(
            weights=self.weights,
            length=config.segment_length,
            mask_ratio=config.mask_ratio,
            max_segments=policy.arch.max_segments if isinstance(policy, TaskModel) else 1,
            begin=tokenizer.bos_id,
            end=tokenizer.eos_id,
            mask=mask,
            ordinary=np.array([i for i in range(tokenizer.vocab_size) if i not in special], np.int64),
        )

    def begin(self, batches: Iterator[Batch], *, step: int, out: Path) -> Mapping[str, object]:
        """Sentences for pairs of two documents, from the first samples of the data."""
        if not self.weights[DISTANCE]:
            return {}
        self.draw = replace(self.draw, pool=pool_of(batches))
        return {"pool": len(self.draw.pool)}

    def prepare(self, batches: Sequence[Batch], *, step: int, seed: int) -> Sequence[Batch]:
        """The batches of the stage, with the seed by which objectives and masks are drawn."""
        self.stage = self.growth.at(step)
        return [seeded(batch, seed) for batch in fewer(batches, self.stage.batch)]

    def normalizers(self, batch: Batch) -> Mapping[str, float]:
        """Targets of each objective; ``seen``: all tokens but padding."""
        counts = {task: 0.0 for task, weight in self.weights.items() if weight}
        for example in self._examples(batch):
            counts[example.task] += num_targets(example)
        return {**counts, "seen": float(batch.num_tokens)}

    def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
        """Loss of one micro-batch; metrics ``loss``, ``<objective>/loss`` and ``<objective>/accuracy``."""
        examples = self._examples(batch)
        by_task = {task: [one for one in examples if one.task == task] for task in TASKS}
        loss, metrics = anchor(self.policy, by_task), dict[str, Any]()
        for task, (total, hits) in self._sums(by_task).items():
            count = sum(num_targets(one) for one in by_task[task])
            loss = loss + total / totals[task]
            metrics[f"{task}/loss"] = total.detach(), count
            if hits is not None:
                metrics[f"{task}/accuracy"] = hits, count
        share = batch.num_tokens / (totals["seen"] or 1.0)
        if self.policy.training and self.growth.grows:
            metrics |= {
                "progressive/length": (float(self.stage.length), 1.0),
                "progressive/dropout": (self.stage.dropout, 1.0),
            }
        return LossOutput(loss=loss, metrics={"loss": (loss.detach(), share), **metrics})

    def _length(self) -> int:
        """Tokens that are read at once; 0: whole samples."""
        return self.stage.length if self.policy.training and self.length else self.length

    def _examples(self, batch: Batch) -> list[Example]:
        return examples_of(batch, replace(self.draw, length=self._length()))

    def _sums(self, by_task: Mapping[str, Sequence[Example]]) -> dict[str, tuple[Tensor, Tensor | None]]:
        """Objective -> sum of its losses and, of classes and hidden tokens, how many were right."""
        out: dict[str, tuple[Tensor, Tensor | None]] = {}
        if by_task[DOCUMENT]:
            out[DOCUMENT] = self._document(by_task[DOCUMENT]), None
        understood = [one for task in TASKS if task != DOCUMENT for one in by_task[task]]
        if not understood:
            return out
        ids, real, labels = padded(understood)
        hidden = self.policy.understand(paddle.to_tensor(ids), attention_mask=paddle.to_tensor(real))
        for task in dict.fromkeys(one.task for one in understood):
            rows = np.array([i for i, one in enumerate(understood) if one.task == task])
            if task in CHOICES:
                targets = paddle.to_tensor(np.array([understood[i].choice for i in rows]))
                head = self.policy.heads.reorder if task == REORDER else self.policy.heads.distance
                logits = head(hidden[:, 0].gather(paddle.to_tensor(rows))).astype("float32")
                out[task] = F.cross_entropy(logits, targets, reduction="sum"), _hits(logits, targets)
            else:
                part = hidden.gather(paddle.to_tensor(rows))
                out[task] = self._nll(part, labels[rows]), self._found(part, labels[rows])
        return out

    def _document(self, examples: Sequence[Example]) -> Tensor:
        """Sum of -log p of next tokens. Samples go through the model together, segment by segment, the longest first: those that
        have a further segment are the first ones, and all of their segment before was real."""
        examples = sorted(examples, key=lambda one: -len(one.ids))
        ids, real, labels = padded(examples)
        length = self._length()
        if not length:
            features = self.policy.features(paddle.to_tensor(ids), attention_mask=paddle.to_tensor(real))
            return self._nll(features.hidden, labels)
        memory, total = None, paddle.zeros([])
        for start in range(0, ids.shape[1], length):
            alive = sum(len(one.ids) > start for one in examples)
            where = slice(0, alive), slice(start, start + length)
            kept = None if memory is None else tuple(layer[:alive] for layer in memory)
            out = self.policy.recur(
                paddle.to_tensor(ids[where]),
                memory=kept,
                start=start,
                attention_mask=paddle.to_tensor(real[where]),
            )
            memory = out.memory
            total = total + self._nll(out.hidden, labels[where])
        return total

    def _nll(self, hidden: Tensor, labels: NDArray[np.int64]) -> Tensor:
        """Sum of -log p over the positions [A, S] with a label; hidden [A, S, H]."""
        weight, transposed, bias = self.policy.head()
        return ops.linear_cross_entropy(
            hidden.reshape([-1, hidden.shape[-1]]),
            weight,
            paddle.to_tensor(np.ascontiguousarray(labels).reshape(-1)),
            transposed=transposed,
            bias=bias,
            chunk=self.loss_chunk,
        ).sum()

    def _found(self, hidden: Tensor, labels: NDArray[np.int64]) -> Tensor:
        """How many hidden tokens are the most likely ones."""
        (where,) = np.nonzero(labels.reshape(-1) != IGNORE)
        with paddle.no_grad():
            rows = hidden.detach().reshape([-1, hidden.shape[-1]]).gather(paddle.to_tensor(where))
            return _hits(self.policy.logits(rows), paddle.to_tensor(labels.reshape(-1)[where]))


def num_targets(example: Example) -> float:
    """What an example adds to the denominator of its objective."""
    return 1.0 if example.task in CHOICES else float(np.count_nonzero(example.labels != IGNORE))


def padded(examples: Sequence[Example]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Ids, mask (1 at real tokens) and labels, int64 [A, S], padded on the right."""
    shape = len(examples), max(len(one.ids) for one in examples)
    ids, real, labels = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.full(shape, IGNORE, np.int64)
    for row, one in enumerate(examples):
        n = len(one.ids)
        ids[row, :n], real[row, :n], labels[row, :n] = one.ids, 1, one.labels
    return ids, real, labels


def anchor(policy: Any, by_task: Mapping[str, Sequence[Example]]) -> Tensor:
    """Zero, with a gradient of zeros for parameters that the examples do not reach. Which module a rank trains in a step is
    chance, and one process alone would skip a parameter without a gradient where several have one of zeros."""
    reached = {task for task, examples in by_task.items() if examples}
    understood = reached - {DOCUMENT}
    unused = {"nlg": DOCUMENT not in reached, "nlu": not understood}
    unused |= {f"heads.{task}": task not in reached for task in CHOICES} | {"heads.labels": True}
    total = paddle.zeros([])
    for name, parameter in policy.named_parameters():
        if parameter.stop_gradient:
            continue
        if not reached or any(missing and name.startswith(f"{module}.") for module, missing in unused.items()):
            total = total + parameter.astype("float32").sum() * 0.0
    return total


def _hits(logits: Tensor, targets: Tensor) -> Tensor:
    return (logits.detach().argmax(axis=-1) == targets).astype("float32").sum()


def _check_model(policy: Any, weights: Mapping[str, float], length: int) -> None:
    """Raises ``PluginError`` for a model that cannot do what the objectives ask of it."""
    wanted = [task for task, weight in weights.items() if weight and task != DOCUMENT]
    found = isinstance(policy, TaskModel)
    if (wanted and not (found and policy.nlu is not None)) or (weights[DOCUMENT] and length and not found):
        needs = f"a module for understanding ({', '.join(wanted)})" if wanted else "a recurrence memory"
        raise PluginError(
            f"the objectives need a model with {needs}",
            found=str(policy.architecture.get("model_type", "a model without model_type")),
            expected="--model ernie3, with `nlu` in task_modules",
            fix="or set these weights to 0 and method.segment_length=0: then any model learns whole documents",
        )
