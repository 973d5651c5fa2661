"""AdamW over named parameters, and the global gradient norm. Not a schedule: the rate of each step comes from outside.

    m ← β₁ m + (1 − β₁) g      v ← β₂ v + (1 − β₂) g²
    θ ← θ (1 − η r λ) − η r · (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)         Loshchilov & Hutter 2019, algorithm 2

r is the parameter's own factor of the rate η (layer-wise decay, LoRA+), λ the weight decay (0 for vectors).

Why not ``paddle.optimizer.AdamW``: its state is keyed by generated names (``linear_2.w_0``) that change when any
other layer is made first, and it keeps both β powers per parameter. The operator ``erniecore.ops.adamw`` (the same fused
in-place kernel, or an installed one for all tensors at once) is called here with moments under structured names and the
powers computed from the number of updates, so the state is two arrays per parameter and one integer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import paddle

from erniecore.config.core import TrainSection
from erniecore.engine.arrays import Array, dtype_name, to_numpy, to_tensor
from erniecore.errors import CheckpointError
from erniecore.ops.adamw import Terms, adamw_, square_sum

if TYPE_CHECKING:
    from erniecore.types.model import Tensor

_NOT_DECAYED = re.compile(r"(^|[._])(bias|norm|layernorm|rmsnorm|ln)([._]|$)")
_LAYER = re.compile(r"(?:^|\.)(?:layers|blocks|h)\.(\d+)\.")
_EMBEDDING = re.compile(r"embed")


@dataclass(slots=True)
class Slot:
    """One parameter with its optimizer state.

    ``first``/``second``: the moments in their stored dtype. ``master``: float32 copy of a parameter of lower precision.
    ``part``: range of the flattened parameter that is updated here, for which alone there is state; ``None``: all of it.
    ``reduced``: the gradient of that part, where the ranks keep no more of it.
    """

    name: str
    parameter: Tensor
    factor: float
    decays: bool
    first: Tensor
    second: Tensor
    master: Tensor | None
    part: tuple[int, int] | None = None
    reduced: Tensor | None = None

    def of(self, tensor: Tensor) -> Tensor:
        """The part of the parameter, or of its gradient, that is updated here; shares its memory."""
        return tensor if self.part is None else tensor.flatten()[self.part[0] : self.part[1]]

    def state_tensors(self) -> dict[str, Tensor]:
        """``<parameter>.first``, ``.second`` and ``.master`` -> tensor."""
        found = {f"{self.name}.first": self.first, f"{self.name}.second": self.second}
        return found if self.master is None else {**found, f"{self.name}.master": self.master}

    @contextmanager
    def state_on(self, place: Any) -> Iterator[None]:
        """State that lies in the host's memory is on ``place`` within the block; what has become of it goes back."""
        kept = self.first, self.second, self.master
        self.first, self.second = (tensor._copy_to(place, True) for tensor in kept[:2])
        self.master = None if self.master is None else self.master._copy_to(place, True)
        yield
        for host, device in zip(kept, (self.first, self.second, self.master), strict=True):
            if host is not None:
                host.copy_(device, True)
        self.first, self.second, self.master = kept

    @property
    def gradient(self) -> Tensor | None:
        """What the update reads; ``None`` where there is nothing to update."""
        if self.parameter.size == 0 or (self.part is not None and self.part[0] == self.part[1]):
            return None
        if self.reduced is not None:
            return self.reduced
        return None if self.parameter.grad is None else self.of(self.parameter.grad)


def is_decayed(name: str, ndim: int) -> bool:
    """Whether weight decay applies: matrices and stacks of them, but no vector, norm or bias."""
    return ndim > 1 and not _NOT_DECAYED.search(name)


def count_layers(names: Iterable[str]) -> int:
    """One more than the highest number of a layer that the names of parameters tell."""
    return max((int(match.group(1)) + 1 for name in names if (match := _LAYER.search(name))), default=0)


def layer_factors(names: Iterable[str], lowest: float, num_layers: int = 0) -> dict[str, float]:
    """Layer-wise factors of the learning rate: ``lowest`` for embeddings, 1 for the head and final norm, and
    ``lowest + (1 − lowest)(i + 1)/(L + 1)`` for layer i of L (0: as many as the names tell)."""
    names = list(names)
    depth = {name: int(match.group(1)) for name in names if (match := _LAYER.search(name))}
    num_layers = num_layers or count_layers(names)
    factors = {}
    for name in names:
        if name in depth:
            factors[name] = lowest + (1 - lowest) * (depth[name] + 1) / (num_layers + 1)
        else:
            factors[name] = lowest if _EMBEDDING.search(name) else 1.0
    return factors


class AdamW:
    """The optimizer of a run.

    Args:
        parameters: (structured name, parameter); those with ``stop_gradient`` are left out.
        settings: rates, decay, dtype of the moments.
        factors: pattern (``fnmatch`` over structured names) -> factor of the learning rate; the first match counts.
        share: name and shape -> ``Slot.part``. shape_of: name and shape here -> shape of the whole.
        num_layers: of the whole model, where only some of its parameters are here.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, Tensor]],
        settings: TrainSection,
        factors: Mapping[str, float] | None = None,
        share: Callable[[str, Sequence[int]], tuple[int, int] | None] = lambda name, shape: None,
        shape_of: Callable[[str, Sequence[int]], Sequence[int]] = lambda name, shape: shape,
        num_layers: int = 0,
    ) -> None:
        trained = [(name, parameter) for name, parameter in parameters if not parameter.stop_gradient]
        if not trained:
            raise ValueError("no parameter is trainable")
        by_layer = layer_factors((name for name, _ in trained), settings.layer_lr_decay, num_layers)
        self.settings = settings
        self.num_updates = 0
        self.slots = []
        for name, parameter in trained:
            factor = by_layer[name] * _factor(name, factors or {})
            decays = is_decayed(name, len(shape_of(name, parameter.shape)))
            self.slots.append(_slot(name, parameter, factor, settings, share(name, parameter.shape), decays))

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """(name, gradient) of every parameter that has one."""
        for slot in self.slots:
            if (gradient := slot.gradient) is not None:
                yield slot.name, gradient

    def gradient_square_sum(self, counts: Callable[[str], bool] = lambda name: True) -> Tensor:
        """Σ g² over the gradients that count, float32 scalar, still on the device. Not finite if one of them is not."""
        return square_sum([gradient for name, gradient in self.gradients() if counts(name)])

    def step(self, learning_rate: float, scale: float = 1.0) -> None:
        """Update every parameter that has a gradient, in place; gradients are multiplied by ``scale`` first."""
        self.num_updates += 1
        s, slots = self.settings, [(slot, grad) for slot in self.slots if (grad := slot.gradient) is not None]
        # powers in float64, rounded where they are used, are the same after a resume
        one, two = s.adam_beta1**self.num_updates, s.adam_beta2**self.num_updates
        terms = Terms(s.adam_beta1, s.adam_beta2, s.adam_epsilon, one, two, scale)
        with paddle.no_grad():
            if not s.optimizer_offload:
                self._update(slots, learning_rate, terms)
                return
            for slot, gradient in slots:
                with slot.state_on(gradient.place):
                    self._update([(slot, gradient)], learning_rate, terms)

    def _update(self, slots: Sequence[tuple[Slot, Tensor]], learning_rate: float, terms: Terms) -> None:
        adamw_(
            [slot.of(slot.parameter) if slot.master is None else slot.master for slot, _ in slots],
            [gradient for _, gradient in slots],
            [slot.first for slot, _ in slots],
            [slot.second for slot, _ in slots],
            [learning_rate * slot.factor for slot, _ in slots],
            [self.settings.weight_decay if slot.decays else 0.0 for slot, _ in slots],
            terms,
        )
        for slot, _ in slots:
            if slot.master is not None:
                own = slot.of(slot.parameter)
                paddle.assign(slot.master.astype(own.dtype), output=own)

    def clear_gradients(self) -> None:
        """Drop all gradients, so that their memory is free before the next forward pass."""
        for slot in self.slots:
            slot.reduced = None
            slot.parameter.grad = None  # clear_gradient would leave zeros, which look like a gradient

    # ---- state
    def state_tensors(self) -> dict[str, Tensor]:
        """``<parameter>.first``, ``.second`` and ``.master`` -> tensor, under structured names."""
        return {name: tensor for slot in self.slots for name, tensor in slot.state_tensors().items()}

    def state_arrays(self) -> dict[str, Array]:
        """:meth:`state_tensors` as numpy arrays (bfloat16 as uint16 bits)."""
        return {name: to_numpy(tensor) for name, tensor in self.state_tensors().items()}

    def load_state_arrays(self, arrays: Mapping[str, Array], num_updates: int) -> None:
        """Restore what :meth:`state_arrays` returned.

        Raises:
            CheckpointError: a name is missing or unknown, or a shape differs.
        """
        tensors = self.state_tensors()
        load_exactly(tensors, arrays, "optimizer state")
        self.num_updates = num_updates


#: by ``train.optimizer``
OPTIMIZERS: dict[str, type[AdamW]] = {"adamw": AdamW}


def load_exactly(tensors: Mapping[str, Tensor], arrays: Mapping[str, Array], what: str) -> None:
    """Overwrite all ``tensors`` with the ``arrays`` of the same names. A mapping that reads from files may say the
    shapes beforehand in ``entries``, so that each array is read once.

    Raises:
        CheckpointError: names or shapes differ; nothing has been changed then.
    """
    odd = sorted(set(tensors) ^ set(arrays))
    if odd:
        problem = "missing" if odd[0] in tensors else "unknown"
        raise CheckpointError(f"{what}: {len(odd)} tensors do not match", where=odd[0], found=problem)
    known = getattr(arrays, "entries", arrays)
    for name, tensor in tensors.items():
        if tuple(known[name].shape) != tuple(tensor.shape):
            shapes = str(tuple(known[name].shape)), str(tuple(tensor.shape))
            raise CheckpointError(f"{what}: shape differs", where=name, found=shapes[0], expected=shapes[1])
    with paddle.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(to_tensor(arrays[name], dtype_name(tensor)), True)  # it stays on the device where it is


def _factor(name: str, factors: Mapping[str, float]) -> float:
    return next((factor for pattern, factor in factors.items() if fnmatchcase(name, pattern)), 1.0)


def _slot(
    name: str, parameter: Tensor, factor: float, settings: TrainSection, part: tuple[int, int] | None, decays: bool
) -> Slot:
    shape = parameter.shape if part is None else [part[1] - part[0]]
    first, second = (paddle.zeros(shape, dtype=settings.moments) for _ in range(2))
    slot = Slot(name, parameter, factor, decays, first, second, master=None, part=part)
    if dtype_name(parameter) != "float32":
        slot.master = slot.of(parameter.detach()).astype("float32")
    if settings.optimizer_offload:
        slot.first, slot.second = slot.first.cpu(), slot.second.cpu()
        slot.master = None if slot.master is None else slot.master.cpu()
    return slot
