"""How often the initial model completes each prompt right: measured once, before the first step. Hints and curricula go by it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from erniecore.api import CheckpointError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from erniecore_rl.prompts import Prompt

#: begin the names of the arrays in a checkpoint
PREFIX = "pass_rates."


def prompt_key(prompt: Prompt) -> int:
    """A number of 63 bits for a prompt: of its tokens and images, not of its place."""
    content = prompt.ids.astype("<i8").tobytes() + "\0".join(prompt.media).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") >> 1


class PassRates:
    """Prompt -> share of its completions that were right, from 0 to 1. Prompts with the same tokens have one in common."""

    def __init__(self) -> None:
        self._rates: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._rates)

    def __contains__(self, prompt: Prompt) -> bool:
        return prompt_key(prompt) in self._rates

    def add(self, prompts: Sequence[Prompt], rates: Sequence[float]) -> None:
        """The rates of some prompts."""
        self._rates.update({prompt_key(prompt): float(rate) for prompt, rate in zip(prompts, rates, strict=True)})

    def of(self, prompt: Prompt) -> float:
        """Raises ``CheckpointError`` for a prompt that was not there when the rates were measured."""
        try:
            return self._rates[prompt_key(prompt)]
        except KeyError:
            raise CheckpointError(
                "the pass rate of a prompt was not measured",
                where=prompt.origin.place(),
                expected="the data that the run began with",
                fix="continue with the same data, or begin a new run (run.resume=never)",
            ) from None

    def summary(self) -> dict[str, object]:
        """How many prompts there are, their mean rate, and the shares that are never and always right."""
        rates = np.array(list(self._rates.values()))
        shares = {"mean": rates.mean(), "never": (rates == 0).mean(), "always": (rates == 1).mean()}
        return {"kind": "pass-rates", "prompts": len(rates), **{k: round(float(v), 4) for k, v in shares.items()}}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """For a checkpoint; nothing where nothing was measured."""
        if not self._rates:
            return {}
        keys, rates = np.array(list(self._rates), np.int64), np.array(list(self._rates.values()))
        return {f"{PREFIX}prompts": keys, f"{PREFIX}rates": rates}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`arrays` gave; arrays of other names are ignored."""
        if f"{PREFIX}prompts" in arrays:
            keys, rates = np.array(arrays[f"{PREFIX}prompts"]), np.array(arrays[f"{PREFIX}rates"])
            self._rates = dict(zip(keys.tolist(), rates.tolist(), strict=True))
