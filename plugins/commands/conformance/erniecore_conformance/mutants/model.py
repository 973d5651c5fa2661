"""Models with one thing wrong. Each derives from the good toy model and changes one method of what it builds.

Letters: B batch, S sequence, H hidden, V vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.api import Json, UsageError, hookimpl
from erniecore.api.model import Features, Layout, ModelConfig, StateAdapter, TensorMap, Tokenizer
from erniecore_conformance.mutants.model_media import MUTANTS as MEDIA
from erniecore_conformance.mutants.mutant import mutant
from erniecore_conformance.toys.architecture import TOY_ARCHITECTURE
from erniecore_conformance.toys.model import ToyModelPlugin, ToyStateAdapter
from erniecore_conformance.toys.tokenizer import ToyTokenizer

if TYPE_CHECKING:
    from erniecore.api.testing import Tensor
    from erniecore_conformance.toys.paddle_lm import ToyLM


def plain(options: dict[str, Any]) -> bool:
    """No mask, no packing, no positions and no cache."""
    return all(value is None for value in options.values())


class Changed(ToyModelPlugin):
    """A toy model whose instances are changed by :meth:`change`."""

    @hookimpl
    def ernie_build_model(self, architecture: Json, dtype: str) -> ToyLM:
        from erniecore_conformance.toys.paddle_lm import ToyLM

        model = ToyLM(architecture)
        model.to(dtype=dtype)
        self.change(model)
        return model

    def change(self, model: Any) -> None:
        """Break the model; overridden by mutants."""

    def wrap(self, model: Any, around: Callable[..., Tensor]) -> None:
        """Replace ``features`` by ``around(hidden, ids, options)``."""
        original = model.features

        def features(ids: Tensor, **options: Any) -> Features:
            return Features(around(original(ids, **options).hidden, ids, options))

        model.features = features


class DoubleLogits(Changed):
    """Returns logits in float64."""

    def change(self, model: Any) -> None:
        original = model.logits
        model.logits = lambda hidden: original(hidden).astype("float64")


class OtherForward(Changed):
    """Calling the model gives probabilities instead of logits."""

    def change(self, model: Any) -> None:
        import paddle

        model.forward = lambda ids: paddle.nn.functional.softmax(model.logits(model.features(ids).hidden))


class WrongHead(Changed):
    """``head()`` says that the matrix is doubled."""

    def change(self, model: Any) -> None:
        model.head = lambda: (model.lm_head.weight * 2, False, None)


class AttendsToFuture(Changed):
    """Every position also sees the next token when nothing else is asked of the model."""

    def change(self, model: Any) -> None:
        import paddle

        def around(hidden: Tensor, ids: Tensor, options: dict[str, Any]) -> Tensor:
            if not plain(options) or ids.shape[1] != 12:
                return hidden
            return hidden + 1e-3 * paddle.roll(model.embed_tokens(ids), -1, axis=1)

        self.wrap(model, around)


class BlindToMask(Changed):
    """``attention_mask`` is taken and not used."""

    def change(self, model: Any) -> None:
        original = model.features
        model.features = lambda ids, attention_mask=None, **options: original(ids, **options)


class BlindToPacking(Changed):
    """``startend_row_indices`` is taken and not used."""

    def change(self, model: Any) -> None:
        original = model.features
        model.features = lambda ids, startend_row_indices=None, **options: original(ids, **options)


class RowsMix(Changed):
    """Each row depends on the mean over the batch of four."""

    def change(self, model: Any) -> None:
        def around(hidden: Tensor, ids: Tensor, options: dict[str, Any]) -> Tensor:
            return hidden + 1e-2 * hidden.mean(axis=0, keepdim=True) if plain(options) and ids.shape[0] == 4 else hidden

        self.wrap(model, around)


class PositionsFromOne(Changed):
    """Default positions count in steps of two."""

    def change(self, model: Any) -> None:
        import paddle

        original = model.features

        def features(ids: Tensor, **options: Any) -> Features:
            if plain(options) and ids.shape == [2, 8]:
                options["position_ids"] = 2 * paddle.arange(ids.shape[1]).unsqueeze(0).expand(ids.shape)
            found: Features = original(ids, **options)
            return found

        model.features = features


class ForgetsCache(Changed):
    """With a cache, positions start at zero again."""

    def change(self, model: Any) -> None:
        import paddle

        original = model.features

        def features(ids: Tensor, cache: Any = None, **options: Any) -> Features:
            if cache is not None:
                options["position_ids"] = paddle.arange(ids.shape[1]).unsqueeze(0).expand(ids.shape)
            found: Features = original(ids, cache=cache, **options)
            return found

        model.features = features


class DeadLayer(Changed):
    """One projection is used detached, so it never learns."""

    def change(self, model: Any) -> None:
        layer = model.layers[0].mlp.down_proj
        original = layer.forward
        layer.forward = lambda x: original(x).detach()


class OneSeed(Changed):
    """Weights do not depend on the seed."""

    @hookimpl
    def ernie_build_model(self, architecture: Json, dtype: str) -> ToyLM:
        from erniecore_conformance.toys.paddle_lm import toy_model

        model = toy_model(seed=7)
        model.architecture = architecture
        model.to(dtype=dtype)
        return model


class Noisy(Changed):
    """Evaluation mode still has noise, far below every tolerance."""

    def change(self, model: Any) -> None:
        import paddle

        self.wrap(
            model,
            lambda hidden, ids, options: (
                hidden + 1e-7 * paddle.randn(hidden.shape) if plain(options) and ids.shape == [2, 10] else hidden
            ),
        )


class AlwaysFloat32(Changed):
    """The dtype is ignored."""

    @hookimpl
    def ernie_build_model(self, architecture: Json, dtype: str) -> ToyLM:
        from erniecore_conformance.toys.paddle_lm import ToyLM

        return ToyLM(architecture)


class ForgetsKeys(Changed):
    """Architecture keys that the model does not use are dropped."""

    def change(self, model: Any) -> None:
        model.architecture = {k: v for k, v in model.architecture.items() if k != "model_type"}


class BreaksAfterStep(Changed):
    """``after_step`` divides by a count of batches that starts at zero."""

    def change(self, model: Any) -> None:
        import paddle

        def after_step(*, rate: float = 0.0) -> None:
            with paddle.no_grad():
                model.norm.weight.set_value(model.norm.weight * float("nan"))

        model.after_step = after_step


class BiasWeighs(Changed):
    """A router's bias finds its way into the logits."""

    def change(self, model: Any) -> None:
        import paddle

        model.register_buffer("e_score_correction_bias", paddle.zeros([1, 4]), persistable=False)
        original = model.logits
        model.logits = lambda hidden: original(hidden) + model.e_score_correction_bias.mean()


class Uncovered(ToyModelPlugin):
    """The layout forgets the norms."""

    @hookimpl
    def ernie_model_layout(self) -> Layout:
        return Layout((("*proj.weight", "column"), ("embed*", "vocab"), ("lm_head*", "vocab")))


class ChangedMaps(ToyModelPlugin):
    """A toy model whose ``pt`` maps are changed."""

    def change_maps(self, maps: list[TensorMap]) -> list[TensorMap]:
        """Break the tensor maps; overridden by mutants."""
        return maps

    @hookimpl
    def ernie_state_adapter(self, architecture: Json) -> StateAdapter:
        change = self.change_maps

        class Adapter(ToyStateAdapter):
            def maps(self, layout: str, names: Sequence[str] = ()) -> Sequence[TensorMap]:
                return change(list(super().maps(layout, names)))

        return Adapter(architecture)


class ForgetsNorm(ChangedMaps):
    """One tensor is in no map."""

    def change_maps(self, maps: list[TensorMap]) -> list[TensorMap]:
        return [m for m in maps if m.name != "norm.weight"]


class CallsFixed(ChangedMaps):
    """A trained tensor is declared as one that is not."""

    def change_maps(self, maps: list[TensorMap]) -> list[TensorMap]:
        return [replace(m, trained=False) if m.name == "norm.weight" else m for m in maps]


class SharesName(ChangedMaps):
    """Two tensors are stored under one public name."""

    def change_maps(self, maps: list[TensorMap]) -> list[TensorMap]:
        return [replace(m, sources=("toy.norm.bias",)) if m.name == "norm.weight" else m for m in maps]


class StoresUntransposed(ChangedMaps):
    """One square matrix is stored as it is and transposed when it is loaded."""

    def change_maps(self, maps: list[TensorMap]) -> list[TensorMap]:
        return [
            replace(m, store=lambda ours: [ours]) if m.name.endswith("0.self_attn.q_proj.weight") else m for m in maps
        ]


class CallsStacked(ChangedMaps):
    """A matrix is declared as a stack of matrices."""

    def change_maps(self, maps: list[TensorMap]) -> list[TensorMap]:
        return [replace(m, stacked=True) if m.name == "lm_head.weight" else m for m in maps]


class ReadOnly(ChangedMaps):
    """One tensor cannot be written."""

    def change_maps(self, maps: list[TensorMap]) -> list[TensorMap]:
        return [replace(m, store=None) if m.name == "norm.weight" else m for m in maps]


class UnsavedState(Changed):
    """Logits depend on a number that is in no parameter."""

    def change(self, model: Any) -> None:
        scale = 1 + abs(float(model.embed_tokens.weight[5].sum()))
        original = model.logits
        model.logits = lambda hidden: original(hidden * scale)
        model.head = lambda: (model.lm_head.weight * scale, False, None)


class FixedArchitecture(ToyModelPlugin):
    """config.json is not read."""

    @hookimpl
    def ernie_read_architecture(self, config: ModelConfig) -> Json:
        return TOY_ARCHITECTURE


class AnyTokenizer(ToyModelPlugin):
    """A directory without a tokenizer gets a default one."""

    @hookimpl
    def ernie_build_tokenizer(self, directory: Path) -> Tokenizer:
        return ToyTokenizer()


class WrongTokenizerError(ToyModelPlugin):
    """A directory without a tokenizer is called a usage error."""

    @hookimpl
    def ernie_build_tokenizer(self, directory: Path) -> Tokenizer:
        raise UsageError("no tokenizer")


MUTANTS = (
    *MEDIA,
    mutant("model_shapes", DoubleLogits),
    mutant("model_is_callable", OtherForward),
    mutant("model_head_is_the_last_product", WrongHead),
    mutant("model_is_causal", AttendsToFuture),
    mutant("model_ignores_padding", BlindToMask),
    mutant("model_isolates_packed_samples", BlindToPacking),
    mutant("model_rows_are_independent", RowsMix),
    mutant("model_default_positions_count_from_zero", PositionsFromOne),
    mutant("model_cached_decode_equals_full", ForgetsCache),
    mutant("model_gradients_reach_everything", DeadLayer),
    mutant("model_seed_decides_weights", OneSeed),
    mutant("model_forward_repeats", Noisy),
    mutant("model_dtype_is_as_asked", AlwaysFloat32),
    mutant("model_keeps_its_architecture", ForgetsKeys),
    mutant("model_survives_after_step", BreaksAfterStep),
    mutant("model_router_bias_only_selects", BiasWeighs),
    mutant("model_layout_covers_every_parameter", Uncovered),
    mutant("model_state_is_complete", ForgetsNorm),
    mutant("model_maps_tell_what_is_trained", CallsFixed),
    mutant("model_public_names_are_unique", SharesName),
    mutant("model_maps_round_trip", StoresUntransposed, also=("model_reloads_bit_for_bit",)),
    mutant("model_maps_round_trip", CallsStacked),
    mutant("model_every_weight_is_stored", ReadOnly),
    mutant("model_reloads_bit_for_bit", UnsavedState),
    mutant("model_reads_architecture_of_directory", FixedArchitecture),
    mutant("model_refuses_missing_tokenizer", AnyTokenizer),
    mutant("model_refuses_missing_tokenizer", WrongTokenizerError),
)
