"""Log-likelihoods of continuations, as the serving engine scores prompts.

It is the engine that answers HTTP, so a score is the same to the last bit as that of ``local-completions`` over a server of the
model, and it does not depend on the batch size, on what else is asked for or on what a run that was killed had finished. What
pairs have in common at their beginning, such as the question of several choices, is computed once: the engine's prefix cache
has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from queue import SimpleQueue

from erniecore_generation.engine.requests import Event, Failed, GenerationRequest, PromptScored
from erniecore_generation.sampling import Sampling

from erniecore.api.model import ModelBundle
from erniecore_lm_eval.engines import put, running_engine

#: context and continuation, in token ids
Pair = tuple[tuple[int, ...], tuple[int, ...]]
#: pairs that wait in the engine
_AHEAD = 64


def score_pairs(bundle: ModelBundle, pairs: Sequence[Pair], context: int) -> Iterator[tuple[int, float, bool]]:
    """(index of the pair, sum of log-probabilities of its continuation in nats, whether greedy decoding gives it), as they are
    computed. Log-probabilities are float32, as the server tells them; they are summed as Python's floats.

    Args:
        bundle: with a tokenizer. pairs: both parts of each are not empty. context: most tokens of a pair, but for the last
            one, which is not read.

    Raises:
        NumericsError: logits that are not finite.
    """
    events: SimpleQueue[tuple[int, Event]] = SimpleQueue()
    with running_engine(bundle, rows=1, context=context, waiting=_AHEAD) as engine:

        def submit(index: int) -> None:
            before, continuation = pairs[index]
            request = GenerationRequest(
                before + continuation, Sampling(), 0, prompt_logprobs=1, scored_from=len(before)
            )
            engine.submit(request, partial(put, events, index))

        waiting = iter(range(len(pairs)))
        for index in islice(waiting, _AHEAD):
            submit(index)
        left = len(pairs)
        while left:
            index, event = events.get()
            if isinstance(event, Failed):
                raise event.error
            if not isinstance(event, PromptScored):  # it has ended: there is room for another
                for following in islice(waiting, 1):
                    submit(following)
                continue
            left -= 1
            found = [entry for entry in event.logprobs[len(pairs[index][0]) :] if entry is not None]
            yield index, sum(e.logprob for e in found), all(e.logprob == e.top[0][1] for e in found)
