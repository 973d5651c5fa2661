"""Sharded parameters (stage 3): of each large parameter a rank holds a flat range; the whole is there only while the layer
that needs it computes, forward and backward; those of the next layers are gathered meanwhile (``prefetch.py``). Gradients
take the way of stage 2 (``gradients.py``).

Rajbhandari et al., "ZeRO" (2020), arXiv:1910.02054. A *unit* is a decoder layer, or a layer outside of those. When a unit
is entered, its parameters get the memory of the whole in place (autograd saved the parameters, not their memory), and
the unit before it gives its own back. In the backward pass the gradients of a unit's outputs enter it. Embedding and head
have no such moment, and share one parameter when tied: there an operator gathers, and its gradient is scattered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import paddle  # noqa: TID253
from erniecore_system.memory import release_freed, return_blocks
from paddle import Tensor, nn  # noqa: TID253
from paddle.autograd import PyLayer  # noqa: TID253

from erniecore.api.layers import derived, keep_range, replaced, sublayer
from erniecore.api.parallel import Layout
from erniecore.api.training import share_memory
from erniecore_hybrid_parallel.background import AsyncComm
from erniecore_hybrid_parallel.comm import Comm
from erniecore_hybrid_parallel.placement import Placement
from erniecore_hybrid_parallel.prefetch import Gathered, Prefetch

#: parameters with fewer elements stay whole: fetching them costs more than keeping them
SMALLEST = 1024
#: parameters with at least so many elements have a message of their own, whose memory they take
LARGE = 1 << 19
#: bytes of blocks that go back to the system when they are freed, as whole heads are after every pass
RETURNED = 128 << 20


@dataclass(frozen=True, eq=False)
class Member:
    """A sharded parameter: its name and where it is; ``place.flat_of`` is the shape that it has while it is whole here."""

    name: str
    parameter: Tensor
    place: Placement


class ParameterShards:
    """The sharded parameters of a model and of its copies; one of them for all.

    Attributes:
        gathered: names whose gradients :meth:`scattered` hands over, not a hook.
        prepared: whether a model has layers that gather.

    Args:
        ahead: of how many layers the parameters are gathered while the layer before them computes. beside: the group for that
            which has the ranks of another group.
    """

    prepared = False

    def __init__(self, ahead: int = 0, beside: Callable[[Comm], AsyncComm] | None = None) -> None:
        self._inside: Any = None
        self._beside = beside
        self.prefetch = Prefetch(ahead, lambda unit: self._begin(unit))
        self._flat: list[tuple[Tensor, Tensor]] = []
        self._heads: list[tuple[Tensor, Tensor]] = []
        self._kept = set[int]()
        self.gathered: set[str] = set()
        self.slots: dict[str, Any] = {}
        self.anchor = paddle.zeros([])
        self.anchor.stop_gradient = False

    def __deepcopy__(self, memo: dict[int, Any]) -> ParameterShards:
        return self

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def enter(self, unit: Any, *, backward: bool = False) -> None:
        """``unit``'s parameters are whole from here on, those of the unit before are ranges again. ``backward``: for the
        gradients of its outputs, which are those of a head's inputs or come behind them, so that no head is kept."""
        if self._inside is not unit:
            self.leave()
            ahead = self.prefetch.take(unit)
            for member, whole in gathered(unit.shared_members) if ahead is None else ahead:
                flat = paddle.empty([0], member.parameter.dtype)
                share_memory(member.parameter, flat)
                self._flat.append((member.parameter, flat))
                share_memory(whole, member.parameter)
            self._inside = unit
        if backward:
            self._heads = []
        self.prefetch.entered(unit, backward=backward)

    def _begin(self, unit: Any) -> Gathered:
        """Begin to gather the parameters of ``unit``."""
        assert self._beside is not None
        beside, going = self._beside, []
        for members, flat in messages(unit.shared_members):
            going.append((members, beside(members[0].place.sharding).all_gather(flat)))
        return lambda: [pair for members, pending in going for pair in wholes(members, pending.wait())]

    def keeps(self, unit: Any) -> bool:
        """Whether the parameters of ``unit`` are whole for longer than a pass."""
        return id(unit) in self._kept

    @contextmanager
    def whole(self, model: Any) -> Iterator[None]:
        """Within, all parameters of ``model`` are whole, also with values that are assigned to them: passes gather nothing, as
        many as a rank makes. Afterwards they are the ranges that they were. Without gradients."""
        self.release()
        units = [
            layer for layer in model.sublayers(include_self=True) if isinstance(layer, Unit | LookUp | GatheredHead)
        ]
        flat: dict[int, tuple[Tensor, Tensor]] = {}
        with paddle.no_grad():
            for unit in units:  # one after the other: of what is sent only one unit is there twice
                members = [member for member in unit.shared_members if id(member.parameter) not in flat]
                for member, whole in gathered(members):
                    parameter = member.parameter
                    flat[id(parameter)] = parameter, paddle.empty([0], parameter.dtype)
                    share_memory(parameter, flat[id(parameter)][1])
                    share_memory(whole, parameter)
        self._kept = {id(unit) for unit in units}
        try:
            yield
        finally:
            self._kept = set()
            for parameter, local in flat.values():
                share_memory(local, parameter)

    def release(self) -> None:
        """All parameters are ranges, and nothing is on its way."""
        self.leave()
        self.prefetch.rest()

    def leave(self) -> None:
        """The parameters of the unit that was entered last are ranges again; no head is kept for further uses."""
        for parameter, flat in self._flat:
            share_memory(flat, parameter)
        self._inside, self._flat, self._heads = None, [], []

    def head_of(self, member: Member, gather: Callable[[], Tensor]) -> Tensor:
        """The whole of a head without a gradient: that of this pass where there is one, so that it is gathered equally often on
        ranks with other numbers of tokens to look at."""
        found = next((whole for parameter, whole in self._heads if parameter is member.parameter), None)
        return self.keep_head(member, gather()) if found is None else found

    def keep_head(self, member: Member, whole: Tensor) -> Tensor:
        """``whole``, which other uses of this pass get too; :meth:`release` lets it go."""
        self._heads.append((member.parameter, whole.detach()))
        return whole

    def entered_by_gradients(self, unit: Any, outputs: Any) -> Any:
        """``outputs``, the gradients of which enter ``unit`` again when the last of them is known. Losses of routers have theirs
        at the start of the backward pass, for all layers at once, while another unit computes that must stay whole."""
        found = [one for one in paddle.utils.flatten(outputs) if isinstance(one, Tensor)]
        tensors = [one for one in found if not one.stop_gradient and not one.is_leaf]
        if len(tensors) < 2 or not paddle.is_grad_enabled():
            for tensor in tensors:
                tensor.register_hook(lambda gradient: self.enter(unit, backward=True))
            return outputs
        joined = _Joined.apply(lambda: self.enter(unit, backward=True), *tensors)
        instead = {id(one): other for one, other in zip(tensors, joined, strict=True)}
        return paddle.utils.map_structure(lambda value: instead.get(id(value), value), outputs)

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def scattered(self, member: Member, gradient: Tensor) -> None:
        """The whole gradient of a use of ``member``: this rank's range of the sum over all ranks is kept."""
        place, slot = member.place, self.slots[member.name]
        flat, padding = gradient.flatten().astype(member.parameter.dtype), -gradient.size % place.sharding.size
        if padding:
            flat = paddle.concat([flat, paddle.zeros([padding], flat.dtype)])
        local = place.replicas.all_reduce(place.sharding.reduce_scatter(flat))[: member.parameter.size].clone()
        slot.reduced = local if slot.reduced is None else slot.reduced.add_(local)


class Unit:
    """A layer whose parameters are gathered when it computes."""

    shards: ParameterShards
    shared_members: list[Member]

    def forward(self, *args: Any, **options: Any) -> Any:
        """As the layer's own."""
        if not self.shared_members or self.shards.keeps(self):
            return super().forward(*args, **options)  # type: ignore[misc]
        self.shards.enter(self)
        return self.shards.entered_by_gradients(self, super().forward(*args, **options))  # type: ignore[misc]


class LookUp:
    """An embedding layer whose table is gathered for the look-up alone."""

    shards: ParameterShards
    shared_members: list[Member]

    def forward(self, ids: Tensor) -> Tensor:
        """ids [...] -> [..., H]."""
        own = super().forward  # type: ignore[misc]
        if not self.shared_members or self.shards.keeps(self):
            return own(ids)
        (member,) = self.shared_members
        self.shards.leave()  # a pass begins: the head of the one before would be there beside the table

        def look_up(whole: Tensor) -> Tensor:
            self.__dict__["weight"] = whole  # before the parameter of this name
            try:
                return own(ids)
            finally:
                del self.__dict__["weight"]

        if member.parameter.stop_gradient or not paddle.is_grad_enabled():
            return look_up(_whole(member)).detach()
        rows: Tensor = _LookUp.apply(self.shards.anchor, ids, member, look_up, self.shards)
        return rows


class GatheredHead:
    """A model whose head is gathered where it is asked for; it lives as long as what is computed with it."""

    shards: ParameterShards
    shared_members: list[Member]

    def head(self) -> tuple[Tensor, bool, Tensor | None]:
        weight, transposed, bias = super().head()  # type: ignore[misc]
        return self._gathered(weight), transposed, None if bias is None else self._gathered(bias)

    def _gathered(self, parameter: Tensor) -> Tensor:
        member = next((member for member in self.shared_members if member.parameter is parameter), None)
        if member is None or self.shards.keeps(self):
            return parameter
        if parameter.stop_gradient or not paddle.is_grad_enabled():
            return self.shards.head_of(member, lambda: _whole(member))
        return self.shards.keep_head(member, _Gather.apply(self.shards.anchor, member, self.shards))


class _Joined(PyLayer):  # type: ignore[misc]
    """Tensors as they are; their gradients go on together, after ``enter``."""

    @staticmethod
    def forward(ctx: Any, enter: Callable[[], None], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.enter = enter
        return tuple(tensor.clone() for tensor in tensors)  # paddle takes what shares memory for a change in place

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        ctx.enter()
        return gradients


class _Gather(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, member: Member, shards: ParameterShards) -> Tensor:
        ctx.to = member, shards
        return _whole(member)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        member, shards = ctx.to
        shards.scattered(member, dy)
        return paddle.zeros([])


class _LookUp(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, ids: Tensor, member: Member, look_up: Any, shards: ParameterShards) -> Tensor:
        ctx.to = ids, member, shards
        return look_up(_whole(member)).detach()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        ids, member, shards = ctx.to
        table = paddle.zeros(member.place.flat_of, dy.dtype)
        shards.scattered(member, table.index_add(ids.flatten(), 0, dy.reshape([-1, dy.shape[-1]])))
        return paddle.zeros([]), None


def prepare(model: Any, layout: Layout, shards: ParameterShards) -> Any:
    """Before anything is cut: the model with layers that can gather the large parameters which they own.

    What the layout cuts among tensor ranks is large; what it leaves whole (norms, routers) stays whole here too."""
    shards.prepared = True
    return_blocks(RETURNED)
    layers = dict(model.named_sublayers(include_self=True))
    head_weight, transposed, _ = model.head()
    done = set[str]()
    for name, owner, unit in list(_owners(model, layout)):
        parameter = _own(layers[owner], name)
        behavior: type | None = Unit
        if parameter is head_weight or layout.style(name) == "vocab":
            only_head = not (parameter is head_weight and transposed) and _of_head(model, parameter)
            unit, behavior = owner, None if only_head else LookUp
        if behavior is not None and unit not in done:
            done.add(unit)
            model = replaced(model, unit, derived(sublayer(model, unit), behavior, shards=shards, shared_members=[]))
    return derived(model, GatheredHead, shards=shards, shared_members=[])


def share(model: Any, layout: Layout, shards: ParameterShards, places: Any) -> None:
    """Keep this rank's range of every large parameter, in place, and say so in the table ``places``."""
    layers = dict(model.named_sublayers(include_self=True))
    for name, owner, around in list(_owners(model, layout)):
        layer, unit = layers[owner], layers[around]
        parameter, place = _own(layer, name), places.of(name)
        count = place.sharding.size
        if count == 1 or parameter.size < max(SMALLEST, count * count):
            continue
        place = replace(place, flat_of=tuple(parameter.shape))
        places.put([name], place)
        start, stop = place.range_of(parameter.shape)
        of_head, looked_up = _of_head(model, parameter), isinstance(layer, LookUp)
        keep_range(parameter, start, stop)
        member = Member(name, parameter, place)
        if of_head:
            model.shared_members.append(member)
        if looked_up:
            layer.shared_members.append(member)
        if of_head or looked_up:
            shards.gathered.add(name)
        else:
            unit.shared_members.append(member)


def gathered(members: Iterable[Member]) -> Iterator[tuple[Member, Tensor]]:
    """Each member with its whole parameter."""
    for same, flat in messages(members):
        yield from wholes(same, same[0].place.sharding.all_gather(flat))


def messages(members: Iterable[Member]) -> Iterator[tuple[list[Member], Tensor]]:
    """One message for each large member, and one for the others of a group and dtype: this rank's ranges of them, each with zeros
    behind it up to the length that it has on all ranks."""
    kinds: dict[Any, list[Member]] = {}
    for member in members:
        alone = member.name if prod(member.place.flat_of or ()) >= LARGE else ""
        kinds.setdefault((member.place.sharding.ranks, member.parameter.dtype, alone), []).append(member)
    for same in kinds.values():
        flat = []
        for member in same:
            local, padding = member.parameter.detach(), _length(member) - member.parameter.size
            flat += [local, paddle.zeros([padding], local.dtype)] if padding else [local]
        yield same, paddle.concat(flat) if len(flat) > 1 else flat[0]


def wholes(members: Sequence[Member], joined: Tensor) -> Iterator[tuple[Member, Tensor]]:
    """Each member with its whole parameter, from the messages of all ranks one after the other."""
    joined, offset = joined.reshape([members[0].place.sharding.size, -1]), 0
    for member in members:
        size, shape = _length(member), member.place.flat_of or ()
        # a member that is alone, such as a head, has the memory of the message; ranges of several are copied once
        whole = joined.flatten() if len(members) == 1 else joined[:, offset : offset + size].flatten()
        yield member, whole[: prod(shape)].reshape(shape)
        offset += size


def _length(member: Member) -> int:
    """Of the longest range of any rank."""
    return -(-prod(member.place.flat_of or ()) // member.place.sharding.size)


@paddle.no_grad()  # type: ignore[untyped-decorator]
def _whole(member: Member) -> Tensor:
    if prod(member.place.flat_of or ()) * member.parameter.element_size() >= RETURNED:
        release_freed(collect=False)  # it is no block of the heap, which keeps what the layers before had
    ((_, whole),) = gathered([member])
    return whole


def _own(layer: nn.Layer, name: str) -> Tensor:
    """The parameter of ``layer`` itself whose full name is ``name``."""
    return dict(layer.named_parameters(include_sublayers=False))[name.rpartition(".")[2]]


def _owners(model: Any, layout: Layout) -> Iterator[tuple[str, str, str]]:
    """(name, layer, unit), all names, of every parameter that the layout cuts: the layer that has it, and the outermost member
    of a list of layers around that, or the layer itself."""
    lists = [name for name, layer in model.named_sublayers(include_self=True) if isinstance(layer, nn.LayerList)]
    for name, _ in model.named_parameters():
        if layout.style(name) in ("replicate", "partial", None):
            continue
        owner = name.rpartition(".")[0]
        around = min((entry for entry in lists if owner.startswith(f"{entry}.")), key=len, default=None)
        unit = owner if around is None else f"{around}.{owner[len(around) + 1 :].partition('.')[0]}"
        yield name, owner, unit


def _of_head(model: Any, parameter: Tensor) -> bool:
    """Whether ``parameter`` is what the model's head computes with."""
    below: Any = super(GatheredHead, model) if isinstance(model, GatheredHead) else model
    weight, _, bias = below.head()
    return parameter is weight or parameter is bias
