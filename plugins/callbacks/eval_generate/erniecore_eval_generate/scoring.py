"""Completions of the prompts and their rewards. Each rank with rows of its own completes its share; the means are over all, in
the order of the rows, so they do not depend on the number of ranks. A completion depends on its own random stream alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, fsum
from pathlib import Path
from typing import Any, NamedTuple

from erniecore_generation.kept_samples import KeptSample, keep_samples
from erniecore_generation.respond import Responder
from erniecore_generation.sampling import Sampling

from erniecore.api import UsageError
from erniecore.api.callback import Evaluation, RunView
from erniecore.api.files import read_object
from erniecore.api.reward import Completion, RewardFunction
from erniecore_eval_generate.config import PREFIX, Config
from erniecore_eval_generate.metrics import reward_functions
from erniecore_eval_generate.prompts import Prompt

#: batches of completions after which the run is asked whether it is to stop
_BATCHES = 4


class _Scored(NamedTuple):
    """What the ranks tell each other of one completion; ``text``: prompt, completion and reference where they are kept."""

    number: int
    rewards: list[float]
    num_tokens: int
    finished: bool
    text: list[str]


def evaluate(run: RunView, config: Config, prompts: Sequence[Prompt], step: int) -> Evaluation | None:
    """Means over all completions; ``None`` where the run is to stop before they are there.

    Raises:
        UsageError: a prompt that leaves no room for a completion.
    """
    functions = reward_functions(config)
    completer = _Completer(run, config, prompts, functions)
    plan, total = run.parallel_plan, len(prompts) * config.completions
    own = range(plan.data_rank, total, plan.data_size)
    size = _BATCHES * config.batch_size
    scored: list[_Scored] = []
    for start in range(0, ceil(total / plan.data_size), size):  # as often on every rank
        scored += completer.complete(own[start : start + size])
        if run.stopping():
            return None
    gathered = run.ranks.all_gather_object([list(s) for s in scored] if run.ranks.counts else [])
    every = sorted(_Scored(*values) for part in gathered for values in part)
    samples = _keep(run, config, every, functions, step)
    metrics = {
        f"{PREFIX}{function.name}": fsum(s.rewards[n] for s in every) / total for n, function in enumerate(functions)
    }
    tokens = sum(s.num_tokens for s in every)
    metrics |= {f"{PREFIX}length": tokens / total, f"{PREFIX}truncated": sum(not s.finished for s in every) / total}
    lower = frozenset({f"{PREFIX}length", f"{PREFIX}truncated"})
    return Evaluation(metrics, lower, examples=total, tokens=tokens, samples=samples)


class _Completer:
    """Completes and scores prompts with the model of a run."""

    def __init__(
        self, run: RunView, config: Config, prompts: Sequence[Prompt], functions: Sequence[RewardFunction]
    ) -> None:
        self.config, self.prompts, self.functions = config, prompts, functions
        self.responder = Responder(run.model, run.tokenizer, generation=_generation(run))
        self.encoded = [self.responder.encode(prompt.messages, prompt.tools) for prompt in prompts]
        context = self.responder.model.architecture.get("max_position_embeddings")
        for prompt, encoded in zip(prompts, self.encoded, strict=True):
            if context is not None and len(encoded.ids) + config.max_new_tokens > int(context):
                raise UsageError(
                    "a prompt of the evaluation leaves no room for its completion",
                    where=prompt.place,
                    found=f"{len(encoded.ids)} tokens, and {config.max_new_tokens} new ones",
                    expected=f"at most {context} tokens together",
                    fix="lower callbacks.eval-generate.max_new_tokens, or leave the row out",
                )
        self.sampling = Sampling()
        if config.temperature:
            self.sampling = Sampling(True, config.temperature, top_p=config.top_p, seed=config.seed)

    def complete(self, indices: Sequence[int]) -> list[_Scored]:
        """Completion ``i`` is number ``i % completions`` of prompt ``i // completions``."""
        chosen = [self.encoded[index // self.config.completions] for index in indices]
        found = self.responder.complete(
            chosen,
            sampling=self.sampling,
            max_new_tokens=self.config.max_new_tokens,
            streams=list(indices),
            batch_size=self.config.batch_size,
        )
        completions = []
        for index, encoded, made in zip(indices, chosen, found, strict=True):
            shown = self.responder.tokenizer.decode(encoded.ids, skip_special=False)
            reference = self.prompts[index // self.config.completions].reference
            finished = made.finish_reason == "stop"
            completions.append(
                Completion(shown, made.text, made.content, made.reasoning, reference, finished, len(made.ids))
            )
        rewards = [function.compute(completions) for function in self.functions]
        return [
            _Scored(
                index,
                [values[place] for values in rewards],
                completion.num_tokens,
                completion.finished,
                [completion.prompt, completion.text, completion.reference] if index < self.config.samples else [],
            )
            for place, (index, completion) in enumerate(zip(indices, completions, strict=True))
        ]


def _generation(run: RunView) -> dict[str, Any] | None:
    """``generation_config.json`` of the model that the run began with, for the tokens that end a completion."""
    path = Path(run.settings.model.path, "generation_config.json")
    if not (run.settings.model.path and path.is_file()):
        return None
    return read_object(path, UsageError, fix="mend or remove it")


def _keep(
    run: RunView, config: Config, scored: Sequence[_Scored], functions: Sequence[RewardFunction], step: int
) -> str:
    """Name of the file with samples; the main rank adds those of this step."""
    if not config.samples:
        return ""
    name = "eval-generate.jsonl"
    if run.is_main:
        names = [function.name for function in functions]
        found = []
        for one in scored:
            if one.text:
                prompt, completion, reference = one.text
                scores = dict(zip(names, one.rewards, strict=True))
                found.append(KeptSample(step, prompt, completion, reference, scores))
        keep_samples(run.out / name, found)
    return name
