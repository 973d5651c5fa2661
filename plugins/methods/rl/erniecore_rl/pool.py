"""The replay buffer: rollouts that are begun in one step and learned from in a later one, in the order of the data.

The pool holds the prompts of this step and of the next ones. All are decoded together until the last completion of *this* step
has ended; what the others have until then stays in the pool and goes on in the next step, with the weights of that step. So
which prompts a step learns from is fixed before anything is sampled: no completion is preferred because it is short, and the
prompts keep their order (ERNIE 5.0, arXiv:2602.04705: unbiased replay buffer). A completion may be of several policies; the
log-probabilities of each of its tokens are those of the policy that sampled it.

Of several processes each has a pool of its own prompts. They decode until the last completion of this step has ended on any of
them, as one process with all prompts would. In a checkpoint what a process has is found by its prompts, so that a run goes on
with the same pools, on another number of processes too.

Letters: P prompts of a step, G completions of each, n tokens of one completion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from erniecore_generation.rollout import Rollout

from erniecore.api import CheckpointError
from erniecore_rl.prompts import digest_of, streams

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from erniecore_rl.prompts import Prompt

#: begins the names of the pool's arrays in a checkpoint
PREFIX = "pool."
#: what a process has of a step, in a checkpoint
_ARRAYS = ("ids", "log_probs", "entropies", "lengths", "finished", "prompts")
_EMPTY = Rollout(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), finished=False)

#: prompts, what was sampled of each of their completions, completions that must end -> these rollouts, further
Continue = Callable[[Sequence["Prompt"], Sequence[Rollout], int], list[Rollout]]


class _Begun(NamedTuple):
    """What one process has of a step: an int64 key of each prompt, and G rollouts of each."""

    keys: Sequence[int]
    rollouts: list[Rollout]


class RolloutPool:
    """The pool between two steps.

    Args:
        copies: completions of each prompt; G.
    """

    def __init__(self, copies: int) -> None:
        self.copies = copies
        #: step -> digest of a process's prompts -> what it has; behind a checkpoint that of all processes
        self._begun: dict[int, dict[str, _Begun]] = {}

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
        before = {step: self._before(step, prompts) for step, prompts in prompts_of_steps.items()}
        now = next(iter(before))
        everything = [prompt for prompts in prompts_of_steps.values() for prompt in prompts]
        begun = [one for found in before.values() for one in found.rollouts]
        further = iter(go_on(everything, begun, len(before[now].rollouts)))
        found = {step: one._replace(rollouts=[next(further) for _ in one.rollouts]) for step, one in before.items()}
        taken = found.pop(now).rollouts
        # a step that the run has skipped leaves the pool, too
        self._begun = {step: {digest_of(one.keys): one} for step, one in found.items()}
        return taken, np.array([len(rollout.ids) for rollout in before[now].rollouts], np.int64)

    def _before(self, step: int, prompts: Sequence[Prompt]) -> _Begun:
        """What there is of a step, [P * G]: nothing, what this process had, or what other processes had of these prompts."""
        keys, known = streams(prompts, 1), self._begun.get(step, {})
        if not known:
            return _Begun(keys, [_EMPTY] * (len(keys) * self.copies))
        own = known.get(digest_of(keys))
        rollouts = own.rollouts if own is not None else self._gathered(keys, known)
        if len(rollouts) != len(keys) * self.copies:
            raise CheckpointError(
                "the rollouts in the checkpoint are not those of the prompts that follow",
                found=f"{len(rollouts)} rollouts for {len(keys)} prompts of step {step}",
                expected=f"{len(keys) * self.copies}, {self.copies} for each",
                fix="resume with the data, batch size and method.group_size that the checkpoint was made with",
            )
        return _Begun(keys, rollouts)

    def _gathered(self, keys: Sequence[int], known: Mapping[str, _Begun]) -> list[Rollout]:
        """The rollouts of these prompts, whichever processes had them; of prompts that none had nothing."""
        groups: dict[int, list[Rollout]] = {}
        for _, one in sorted(known.items()):
            each = len(one.rollouts) // max(len(one.keys), 1)
            groups.update({key: one.rollouts[i * each : (i + 1) * each] for i, key in enumerate(one.keys)})
        return [rollout for key in keys for rollout in groups.get(key, [])]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What goes on in later steps, by names that no process with other prompts has; the prompts are those of the data."""
        found: dict[str, NDArray[Any]] = {}
        for step, known in self._begun.items():
            for digest, (keys, rollouts) in known.items():
                parts = {
                    "ids": np.concatenate([r.ids for r in rollouts]),
                    "log_probs": np.concatenate([r.log_probs for r in rollouts]),
                    "entropies": np.concatenate([r.entropies for r in rollouts]),
                    "lengths": np.array([len(r.ids) for r in rollouts], np.int64),
                    "finished": np.array([r.finished for r in rollouts], np.int8),
                    "prompts": np.array(keys, np.int64),
                }
                found.update({f"{PREFIX}{step:08d}.{digest}.{name}": value for name, value in parts.items()})
        return found

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`arrays` of all processes gave; arrays of other names are ignored."""
        own = {name.removeprefix(PREFIX): np.array(value) for name, value in arrays.items() if name.startswith(PREFIX)}
        self._begun = {}
        for number, digest in sorted({(name.split(".")[0], name.split(".")[1]) for name in own}):
            ids, log_probs, entropies, lengths, finished, keys = (own[f"{number}.{digest}.{name}"] for name in _ARRAYS)
            cuts = np.cumsum(lengths)[:-1]
            parts = zip(*(np.split(values, cuts) for values in (ids, log_probs, entropies)), finished, strict=True)
            rollouts = [Rollout(a, b, c, finished=bool(done)) for a, b, c, done in parts]
            self._begun.setdefault(int(number), {})[digest] = _Begun(keys.tolist(), rollouts)


def joined(begun: Rollout, more: Rollout) -> Rollout:
    """A rollout and how it goes on."""
    ids = np.concatenate([begun.ids, more.ids])
    log_probs = np.concatenate([begun.log_probs, more.log_probs])
    return Rollout(ids, log_probs, np.concatenate([begun.entropies, more.entropies]), finished=more.finished)
