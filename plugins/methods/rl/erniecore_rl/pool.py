"""The replay buffer: rollouts that are begun in one step and learned from in a later one, in the order of the data.

The pool holds the prompts of this step and of the next ones. All are decoded together until the last completion of *this* step
has ended; what the others have until then stays in the pool and goes on in the next step, with the weights of that step. So
which prompts a step learns from is fixed before anything is sampled: no completion is preferred because it is short, and the
prompts keep their order (ERNIE 5.0, arXiv:2602.04705: unbiased replay buffer). A completion may be of several policies; the
log-probabilities of each of its tokens are those of the policy that sampled it.

Letters: P prompts of a step, G completions of each, n tokens of one completion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from erniecore_generation.rollout import Rollout

from erniecore.api import CheckpointError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from erniecore_rl.prompts import Prompt

#: begins the names of the pool's arrays in a checkpoint
PREFIX = "pool."
_EMPTY = Rollout(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), finished=False)

#: prompts, what was sampled of each of their completions, completions that must end -> these rollouts, further
Continue = Callable[[Sequence["Prompt"], Sequence[Rollout], int], list[Rollout]]


class RolloutPool:
    """The pool between two steps.

    Args:
        copies: completions of each prompt; G.
    """

    def __init__(self, copies: int) -> None:
        self.copies = copies
        self._begun: dict[int, list[Rollout]] = {}

    def take(
        self, prompts_of_steps: Mapping[int, Sequence[Prompt]], go_on: Continue
    ) -> tuple[list[Rollout], NDArray[np.int64]]:
        """Complete rollouts of the first step's prompts, and how many tokens of each [P * G] earlier steps sampled.

        Args:
            prompts_of_steps: number of a step -> its prompts; this step first, then those whose prompts are decoded with them.
            go_on: decodes until the first so many rollouts have ended.

        Raises:
            CheckpointError: the rollouts of a checkpoint are not of these prompts.
        """
        before: dict[int, list[Rollout]] = {}
        for step, prompts in prompts_of_steps.items():
            expected = len(prompts) * self.copies
            before[step] = self._begun.get(step, [_EMPTY] * expected)
            if len(before[step]) != expected:
                raise CheckpointError(
                    "the rollouts in the checkpoint are not those of the prompts that follow",
                    found=f"{len(before[step])} rollouts for {len(prompts)} prompts of step {step}",
                    expected=f"{expected}, {self.copies} for each",
                    fix="resume with the data, batch size and method.group_size that the checkpoint was made with",
                )
        now = next(iter(before))
        everything = [prompt for prompts in prompts_of_steps.values() for prompt in prompts]
        further = iter(go_on(everything, [one for begun in before.values() for one in begun], len(before[now])))
        # a step that the run has skipped leaves the pool, too
        self._begun = {step: [next(further) for _ in begun] for step, begun in before.items()}
        return self._begun.pop(now), np.array([len(rollout.ids) for rollout in before[now]], np.int64)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What goes on in later steps, by name; the prompts are those of the data."""
        found: dict[str, NDArray[Any]] = {}
        for step, rollouts in self._begun.items():
            parts = {
                "ids": np.concatenate([r.ids for r in rollouts]),
                "log_probs": np.concatenate([r.log_probs for r in rollouts]),
                "entropies": np.concatenate([r.entropies for r in rollouts]),
                "lengths": np.array([len(r.ids) for r in rollouts], np.int64),
                "finished": np.array([r.finished for r in rollouts], np.int8),
            }
            found.update({f"{PREFIX}{step:08d}.{name}": value for name, value in parts.items()})
        return found

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`arrays` gave; arrays of other names are ignored."""
        own = {name.removeprefix(PREFIX): np.array(value) for name, value in arrays.items() if name.startswith(PREFIX)}
        self._begun = {}
        for number in sorted({name.partition(".")[0] for name in own}):
            ids, log_probs, entropies, lengths, finished = (
                own[f"{number}.{name}"] for name in ("ids", "log_probs", "entropies", "lengths", "finished")
            )
            cuts = np.cumsum(lengths)[:-1]
            parts = zip(*(np.split(values, cuts) for values in (ids, log_probs, entropies)), finished, strict=True)
            self._begun[int(number)] = [Rollout(a, b, c, finished=bool(done)) for a, b, c, done in parts]


def joined(begun: Rollout, more: Rollout) -> Rollout:
    """A rollout and how it goes on."""
    ids = np.concatenate([begun.ids, more.ids])
    log_probs = np.concatenate([begun.log_probs, more.log_probs])
    return Rollout(ids, log_probs, np.concatenate([begun.entropies, more.entropies]), finished=more.finished)
