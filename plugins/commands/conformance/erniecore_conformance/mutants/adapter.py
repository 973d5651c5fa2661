"""Adapters with one thing wrong. They change what the good toy adapter returns.

Letters: R rank."""

from __future__ import annotations

from typing import Any, ClassVar

from erniecore.api import hookimpl
from erniecore.api.adapter import AdapterCapability
from erniecore_conformance.mutants.mutant import mutant
from erniecore_conformance.toys.changes import ToyAdapterConfig, ToyAdapterPlugin


class Changed(ToyAdapterPlugin):
    """A toy adapter whose layers are changed by :meth:`change`."""

    capabilities: ClassVar[frozenset[AdapterCapability]] = frozenset()

    @hookimpl
    def ernie_adapt_model(self, config: ToyAdapterConfig, model: Any) -> Any:
        from erniecore_conformance.toys.paddle_changes import LowRank, add_low_rank

        adapted = add_low_rank(model, config.rank)
        self.change(adapted, [layer for layer in adapted.sublayers() if isinstance(layer, LowRank)])
        return adapted

    def change(self, model: Any, added: list[Any]) -> None:
        """Break the adapted model; overridden by mutants."""


class StartsAnywhere(Changed):
    """Both factors start at random."""

    def change(self, model: Any, added: list[Any]) -> None:
        import paddle

        for layer in added:
            layer.B_RO.set_value(0.1 * paddle.randn(layer.B_RO.shape))


class HidesInterface(Changed):
    """Calling the model gives hidden states."""

    def change(self, model: Any, added: list[Any]) -> None:
        model.forward = lambda ids: model.features(ids).hidden


class TrainsNorm(Changed):
    """One norm of the base stays trainable, though it never gets a gradient."""

    def change(self, model: Any, added: list[Any]) -> None:
        model.norm.bias.stop_gradient = False


class MovesBase(Changed):
    """Each forward pass in training nudges the embedding, far below every tolerance."""

    def change(self, model: Any, added: list[Any]) -> None:
        import paddle

        original = model.features

        def features(ids: Any, **options: Any) -> Any:
            if model.training:
                with paddle.no_grad():
                    model.embed_tokens.weight.set_value(model.embed_tokens.weight * (1 + 1e-6))
            return original(ids, **options)

        model.features = features


class Huge(Changed):
    """More values than the base has."""

    @hookimpl
    def ernie_adapt_model(self, config: ToyAdapterConfig, model: Any) -> Any:
        from erniecore_conformance.toys.paddle_changes import add_low_rank

        return add_low_rank(model, rank=400)


class DeadFactor(Changed):
    """One layer's first factor is detached."""

    def change(self, model: Any, added: list[Any]) -> None:
        layer = added[0]
        layer.forward = lambda x: layer.base(x) + x @ layer.A_IR.detach() @ layer.B_RO


class HardlyLearns(Changed):
    """The addition is divided by a million."""

    def change(self, model: Any, added: list[Any]) -> None:
        for layer in added:
            layer.forward = lambda x, layer=layer: layer.base(x) + 1e-6 * (x @ layer.A_IR @ layer.B_RO)


class OtherDice(Changed):
    """The first factor is drawn from a clock."""

    def change(self, model: Any, added: list[Any]) -> None:
        import time

        import numpy as np

        noise = np.random.default_rng(time.perf_counter_ns()).standard_normal(added[0].A_IR.shape)
        added[0].A_IR.set_value(added[0].A_IR + 1e-6 * noise.astype("float32"))


class MergesTwice(ToyAdapterPlugin):
    """Merging again adds the product again."""

    @hookimpl
    def ernie_adapt_model(self, config: ToyAdapterConfig, model: Any) -> Any:
        from erniecore_conformance.toys.paddle_changes import LowRank, add_low_rank

        adapted = add_low_rank(model, config.rank)
        added = [layer for layer in adapted.sublayers() if isinstance(layer, LowRank)]

        def merge() -> None:
            for layer in added:
                kept = layer.base.weight.clone() if layer.kept is None else layer.kept
                layer.base.weight.set_value(layer.base.weight + layer.A_IR @ layer.B_RO)
                layer.kept = kept

        adapted.merge = merge
        return adapted


class UnmergesBySubtracting(ToyAdapterPlugin):
    """Unmerging subtracts the product, which is not exact."""

    @hookimpl
    def ernie_adapt_model(self, config: ToyAdapterConfig, model: Any) -> Any:
        from erniecore_conformance.toys.paddle_changes import LowRank, add_low_rank

        adapted = add_low_rank(model, config.rank)
        added = [layer for layer in adapted.sublayers() if isinstance(layer, LowRank)]

        def unmerge() -> None:
            for layer in added:
                layer.base.weight.set_value(layer.base.weight - layer.A_IR @ layer.B_RO)
                layer.kept = None

        adapted.unmerge = unmerge
        return adapted


MUTANTS = (
    mutant("adapter_starts_as_identity", StartsAnywhere),
    mutant("adapter_keeps_the_interface", HidesInterface),
    mutant("adapter_freezes_the_base", TrainsNorm, also=("adapter_training_leaves_the_base",)),
    mutant("adapter_training_leaves_the_base", MovesBase),
    mutant("adapter_is_small", Huge),
    mutant("adapter_gradients_reach_everything", DeadFactor),
    mutant("adapter_learns", HardlyLearns),
    mutant("adapter_seed_decides_weights", OtherDice),
    mutant("adapter_merges", MergesTwice),
    mutant("adapter_unmerges", UnmergesBySubtracting),
)
