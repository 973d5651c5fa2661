"""Router replay: a mixture of experts learns with the experts that were chosen at the rollout.

Between rollout and update a router may change its mind, by rounding or because the weights moved, and then ratios compare two
different networks. Replaying the choice keeps the network; scores and weights of the chosen experts are computed anew and get
their gradient. Zheng et al. (GSPO, 2025), arXiv:2507.18071, section 5.3; ERNIE 5.0, arXiv:2602.04705, replays in its
reinforcement learning, too.

Letters: B batch, S sequence, T = B S positions, L layers with a router, k experts per token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle  # noqa: TID253

from erniecore.api import ConfigError
from erniecore.api.experts import ExpertChoices, ReplayedRouter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Fields = dict[str, NDArray[np.int32]]

#: begins the fields of a batch that hold choices, "experts.3" those of the fourth router: int32 [B, S, k]
PREFIX = "experts."


class RouterReplay:
    """The routers of a model, in the order of its layers.

    Raises:
        ConfigError: it has none, or several in a layer.
    """

    def __init__(self, model: Any) -> None:
        found = [layer for layer in model.sublayers() if isinstance(layer, ReplayedRouter)]
        if not found or any(router.num_routers != 1 for router in found):
            what = "a mixture of experts with one router per layer"
            raise ConfigError.at("method.router_replay", f"needs {what}, which this model is not")
        self.routers: list[ReplayedRouter] = found

    def recorded(self, run: Callable[[], object], shape: tuple[int, ...]) -> Fields:
        """What every router chooses in the pass ``run`` over a batch of ``shape`` (B, S). Routers that it does not call, such as
        those of multi-token prediction, have no field."""
        for router in self.routers:
            router.choices = ExpertChoices(sequences=shape[0])
        try:
            run()
            taken = [router.choices.taken for router in self.routers if router.choices is not None]
        finally:
            self.clear()
        arrays = {i: chosen.numpy().astype(np.int32) for i, chosen in enumerate(taken) if chosen is not None}
        # where ranks have positions of the sequences, these may be longer here
        rows = {i: array.reshape([shape[0], -1, array.shape[-1]])[:, : shape[1]] for i, array in arrays.items()}
        return {f"{PREFIX}{i}": np.ascontiguousarray(array) for i, array in rows.items()}

    def give(self, fields: Mapping[str, NDArray[Any]], *, always: bool = False) -> None:
        """Until :meth:`clear`, passes over the batch with these ``fields`` go to the experts in them, also where they are
        recomputed in the backward pass; ``always``: outside of training mode, too."""
        self.clear()
        for name, experts in fields.items():
            if name.startswith(PREFIX):
                given = paddle.to_tensor(experts.reshape([-1, experts.shape[-1]]).astype(np.int64))
                choices = ExpertChoices(given=given, always=always, sequences=len(experts))
                self.routers[int(name.removeprefix(PREFIX))].choices = choices

    def clear(self) -> None:
        """Routers choose as ever."""
        for router in self.routers:
            router.choices = None
