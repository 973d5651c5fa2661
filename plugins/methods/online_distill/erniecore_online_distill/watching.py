"""The attention of the last layer of any model while it computes, and one more layer behind it. The model is not changed:
hooks are there for one forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from erniecore.api import ConfigError, ops
from erniecore.api.layers import repeated_layers
from erniecore.api.ops import AttentionInputs


@dataclass
class Watched:
    """What a forward pass has shown: of the last layer, and of the auxiliary one behind it."""

    last: AttentionInputs | None = None
    auxiliary: AttentionInputs | None = None


def last_layer(model: Any) -> Any:
    """The last decoder layer: of the list of layers that is as long as ``num_hidden_layers`` says.

    Raises:
        ConfigError: there is none.
    """
    count = int(model.architecture.get("num_hidden_layers") or 0)
    lists: dict[str, list[Any]] = {}
    for name, layer in repeated_layers(model).items():
        lists.setdefault(name.rpartition(".")[0], []).append(layer)
    fitting = {name: layers for name, layers in lists.items() if len(layers) == count}
    if not fitting:
        raise ConfigError.at("method.attention", "this model shows no list of layers; set method.attention=0")
    chosen = min(fitting, key=lambda name: (name.rpartition(".")[2] != "layers", name))  # a vision tower has blocks
    return fitting[chosen][-1]


@contextmanager
def watched(model: Any, auxiliary: Any = None) -> Iterator[Watched]:
    """Within the block a forward pass of ``model`` shows the attention of its last layer, and runs ``auxiliary`` behind that
    layer, whose result nobody reads.

    Args:
        auxiliary: a layer like the last one; None: there is none.
    """
    seen = Watched()

    def after(layer: Any, inputs: tuple[Any, ...], outputs: Any) -> None:
        seen.last = calls[-1] if calls else None
        if auxiliary is not None:
            hidden = outputs[0] if isinstance(outputs, tuple | list) else outputs
            auxiliary(hidden, *inputs[1:])
            seen.auxiliary = calls[-1]

    with ops.attention_inputs() as calls:
        hook = last_layer(model).register_forward_post_hook(after)
        try:
            yield seen
        finally:
            hook.remove()
