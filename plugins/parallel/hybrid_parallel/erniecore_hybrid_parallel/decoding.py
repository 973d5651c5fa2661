"""Generation of text on ranks that need each other for a pass of the model: those that share experts, layers of a pipeline, or
the parameters (stage 3). Ranks with different prompts generate texts of different lengths, so they need different numbers of
passes.

Experts: before each pass a rank tells the ranks that share the experts with it that it makes one; a rank whose texts have ended
makes passes over one token, whose output nobody reads, until nobody else needs one. Parameters: they are gathered once, before
the first pass, and stay whole until the last one, so that passes gather nothing. Pipeline: all stages have the same prompts;
each keeps keys and values of its own layers, and the last one gives its logits to the others, which choose the same tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import paddle  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from erniecore.api import PluginError
from erniecore.api.parallel import Features
from erniecore_hybrid_parallel.comm import Comm
from erniecore_hybrid_parallel.parameters import ParameterShards
from erniecore_hybrid_parallel.stages import PipelineModel


class Rounds:
    """What ranks do together while they generate; the same object in every copy of a model.

    Args:
        experts: ranks that share experts and have different prompts. line: the stages of this rank's pipeline.
        parameters: what stage 3 shards. vocabulary: V, of the whole head.

    Attributes:
        generating: whether text is generated.
    """

    def __init__(self, experts: Comm, line: Comm, parameters: ParameterShards, vocabulary: int) -> None:
        self.experts, self.line, self.parameters, self.vocabulary = experts, line, parameters, vocabulary
        self.generating = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Rounds:
        return self

    def announce(self, needed: bool) -> bool:
        """Whether any rank makes a pass now; ``needed``: this one does."""
        if self.experts.size == 1:
            return needed
        return bool(self.experts.all_max(paddle.to_tensor([float(needed)])).item())


class DecodingModel:
    """A model that generates together with other ranks; implements ``erniecore.api.decoding.DecodesWithRanks``."""

    rounds: Rounds

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """See ``DecodesWithRanks``. After an error nothing is waited for: the run ends."""
        rounds = self.rounds
        if rounds.generating:
            yield
            return
        with rounds.parameters.whole(self):
            rounds.generating = True
            try:
                yield
                self.rest()
            finally:
                rounds.generating = False

    def rest(self) -> None:
        """See ``DecodesWithRanks``: passes over one token, whose output nobody reads, for ranks that share experts."""
        while self.rounds.announce(False):
            super().features(paddle.zeros([1, 1], "int64"))  # type: ignore[misc]

    def cached_layers(self, count: int) -> Sequence[int]:
        """All, or those of this stage of a pipeline."""
        return self.pipe.layers_here if isinstance(self, PipelineModel) else range(count)

    def features(self, input_ids: Tensor, **options: Any) -> Features:
        """As ``CausalLM.features``; ranks that share experts make a pass together.

        Raises:
            PluginError: tokens are generated outside of :meth:`decoding`, where ranks would wait for each other without end.
        """
        if self.rounds.generating:
            self.rounds.announce(True)
        elif options.get("cache") is not None:
            raise PluginError(
                "text is generated on a layout whose ranks must do so together, and the others do not know of it",
                where="CausalLM.features(cache=…)",
                fix="use erniecore_generation.generate.generating around it, on every rank",
            )
        found: Features = super().features(input_ids, **options)  # type: ignore[misc]
        return found

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 logits [..., V]; while text is generated, on every stage of a pipeline."""
        found: Tensor = super().logits(hidden)  # type: ignore[misc]
        line = self.rounds.line
        if line.size == 1 or not self.rounds.generating:
            return found
        if line.index < line.size - 1:
            found = paddle.empty([*hidden.shape[:-1], self.rounds.vocabulary], "float32")
        return line.broadcast(found.contiguous(), line.size - 1)
