"""Every hook that a plugin can implement: when it is called, how often, on which ranks, what it may raise.

Rules: calls are by keyword; an implementation may take fewer arguments, but declares no default values
(pluggy never passes them). ``config`` is always the plugin's own section of the settings, never more. Nothing
here changes settings. Additions are new arguments or hooks; a removal warns for one minor version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from erniecore.lifecycle import LifecycleSpecs
from erniecore.quantizer_hooks import QuantizerSpecs

if TYPE_CHECKING:
    from erniecore.config.section import Section
    from erniecore.types import (
        Attempt,
        Batch,
        Cluster,
        DecoderShape,
        Device,
        Encoder,
        Json,
        Layout,
        ModelBundle,
        Objective,
        Origin,
        ParallelPlan,
        Ranks,
        Record,
        StateAdapter,
        StepOutput,
        Tokenizer,
    )
    from erniecore.types.model import Layer

__all__ = ["BuildSpecs", "LifecycleSpecs"]

hookspec = pluggy.HookspecMarker("erniecore")


class BuildSpecs:
    """Hooks with exactly one provider: the plugin selected for their kind. All are called once per run and rank."""

    # ---- device
    @hookspec(firstresult=True)
    def ernie_open_device(self, config: Section, cluster: Cluster) -> Device:
        """The device, not yet opened: this is called before paddle is imported, to read ``environment()``.

        Example::

            @hookimpl
            def ernie_open_device(self, config, cluster):
                from mypackage.device import MyDevice
                return MyDevice(config, cluster)
        """

    # ---- parallel
    @hookspec(firstresult=True)
    def ernie_plan_parallel(self, config: Section, cluster: Cluster, shape: DecoderShape | None) -> ParallelPlan:
        """Degrees and this rank's place, without paddle; ``shape`` if the model says it. May raise ``ConfigError``.

        Example::

            @hookimpl
            def ernie_plan_parallel(self, config, cluster):
                return ParallelPlan({"data": cluster.world_size}, cluster.rank, cluster.world_size)
        """

    @hookspec(firstresult=True)
    def ernie_count_processes(self, config: Section) -> int:
        """How many processes these degrees need; before paddle is imported, once, in the process that starts them.
        Optional: the core's answer is 1.

        Example::

            @hookimpl
            def ernie_count_processes(self, config):
                return config.data
        """

    @hookspec(firstresult=True)
    def ernie_open_ranks(self, config: Section, plan: ParallelPlan, cluster: Cluster, device: Device) -> Ranks:
        """What the processes do together; once on every rank, after the device is open. Needed by a strategy that plans
        for several processes. Raises ``EnvironmentFault`` when they do not find each other.

        Example::

            @hookimpl
            def ernie_open_ranks(self, config, plan, cluster):
                from mypackage.ranks import MyRanks
                return MyRanks(config, plan, cluster)
        """

    @hookspec(firstresult=True)
    def ernie_parallelize(self, model: Layer, layout: Layout, plan: ParallelPlan, ranks: Ranks) -> Layer:
        """Apply the plan to a built, adapted and quantised model; after weights are loaded, before the optimizer.
        ``ranks``: what ``ernie_open_ranks`` gave.

        Example::

            @hookimpl
            def ernie_parallelize(self, model):
                return model
        """

    # ---- model
    @hookspec(firstresult=True)
    def ernie_read_architecture(self, config: Section) -> Json:
        """The architecture as config.json has it, from ``config.path`` or the recipe; unknown keys are kept.

        No paddle: the plan and ``--dry-run`` call it too. Raises ``CheckpointError`` or ``ConfigError``.

        Example::

            @hookimpl
            def ernie_read_architecture(self, config):
                return json.loads((Path(config.path) / "config.json").read_text())
        """

    @hookspec(firstresult=True)
    def ernie_decoder_shape(self, architecture: Json) -> DecoderShape:
        """Sizes of the layers, from which activations, caches and products are planned. No paddle. Optional: without it the
        plan knows nothing of these.

        Example::

            @hookimpl
            def ernie_decoder_shape(self, architecture):
                layer = LayerShape(heads=8, kv_heads=2, head_dim=64, mlp=architecture["intermediate_size"])
                return DecoderShape(architecture["hidden_size"], architecture["vocab_size"], True, (layer,) * 12)
        """

    @hookspec(firstresult=True)
    def ernie_build_model(self, config: Section, architecture: Json, dtype: str) -> Layer:
        """A ``CausalLM`` with initialised weights: single-device code without any parallelism.

        Example::

            @hookimpl
            def ernie_build_model(self, config, architecture, dtype):
                from mypackage.model import MyModel
                return MyModel(architecture)
        """

    @hookspec(firstresult=True)
    def ernie_model_layout(self, architecture: Json) -> Layout:
        """Parallel style of every parameter, as data.

        Example::

            @hookimpl
            def ernie_model_layout(self, architecture):
                return Layout((("*.q_proj.weight", "column"), ("*", "replicate")))
        """

    @hookspec(firstresult=True)
    def ernie_state_adapter(self, architecture: Json) -> StateAdapter:
        """Names and shapes of public checkpoints of this architecture. No paddle.

        Example::

            @hookimpl
            def ernie_state_adapter(self, architecture):
                from mypackage.state import MyStateAdapter
                return MyStateAdapter(architecture)
        """

    @hookspec(firstresult=True)
    def ernie_build_tokenizer(self, config: Section, directory: Path) -> Tokenizer:
        """The tokenizer in ``directory`` with this model's chat template. No paddle.

        Raises ``EnvironmentFault`` when the directory holds none.

        Example::

            @hookimpl
            def ernie_build_tokenizer(self, config, directory):
                return load_tokenizer(directory, template=my_template)
        """

    # ---- adapter, quantizer
    @hookspec(firstresult=True)
    def ernie_adapt_model(self, config: Section, model: Layer) -> Layer:
        """Freeze the model and add what will be trained; after the base weights are loaded.

        The base's parameters keep their names. The result may have ``lr_factors`` (pattern over parameter names ->
        factor of the learning rate) and ``adapter_off()`` (a context manager in which it is the base). With the
        capability ``merge`` it has ``merge()``, ``unmerge()`` and ``unload()``, which takes the adapter off and leaves
        the weights as they are.

        Example::

            @hookimpl
            def ernie_adapt_model(self, config, model):
                return add_lora(model, rank=config.rank)
        """

    @hookspec(firstresult=True)
    def ernie_adapter_shapes(
        self, config: Section, shapes: Mapping[str, Sequence[int]]
    ) -> Mapping[str, tuple[int, ...]]:
        """Name -> shape of the parameters that ``ernie_adapt_model`` would add for training, for the plan; ``shapes``
        are those of the base. No paddle. Optional: without it the plan does not know the adapter's size.

        Example::

            @hookimpl
            def ernie_adapter_shapes(self, config, shapes):
                return {f"{n}.scale": (s[-1],) for n, s in shapes.items() if len(s) == 2}
        """

    @hookspec(firstresult=True)
    def ernie_adapter_layout(self, config: Section, layout: Layout) -> Layout:
        """The model's ``layout`` with rules for what ``ernie_adapt_model`` adds, before its own; asked for when matrices
        are cut. Optional: without it such runs are refused. Raises ``ConfigError`` for what cannot be cut.

        Example::

            @hookimpl
            def ernie_adapter_layout(self, layout):
                return Layout((("*.scale", "last"), *layout.rules))
        """

    @hookspec(firstresult=True)
    def ernie_save_adapter(self, config: Section, model: Layer, target: Path, base: str) -> Path:
        """Write the trained adapter of ``model`` into the existing, empty directory ``target``; returns it. ``base`` is
        the base's model directory or ``""``. Main rank, at the end of a run. Optional: without it only checkpoints hold
        the adapter.

        Example::

            @hookimpl
            def ernie_save_adapter(self, model, target):
                write_tensors(target / "scales.safetensors", scales_of(model))
                return target
        """

    @hookspec(firstresult=True)
    def ernie_match_adapter(self, directory: Path) -> bool:
        """Whether ``ernie_load_adapter`` reads this directory; exactly one installed adapter should. No paddle.

        Example::

            @hookimpl
            def ernie_match_adapter(self, directory):
                return (directory / "scales.safetensors").is_file()
        """

    @hookspec(firstresult=True)
    def ernie_load_adapter(self, model: Layer, directory: Path, name: str) -> Layer:
        """``model`` with the adapter that ``ernie_save_adapter`` wrote, not trained; outside a run.

        ``name`` tells it from others on the same model, with ``set_adapter(name)``, where an adapter allows several.

        Example::

            @hookimpl
            def ernie_load_adapter(self, model, directory):
                return add_scales(model, read_tensors(directory / "scales.safetensors"))
        """

    ernie_quantize_model = QuantizerSpecs.ernie_quantize_model
    ernie_calibrate_model = QuantizerSpecs.ernie_calibrate_model
    ernie_packed_bytes = QuantizerSpecs.ernie_packed_bytes

    # ---- method
    @hookspec(firstresult=True)
    def ernie_build_objective(
        self, config: Section, policy: Layer, reference: Layer | None, tokenizer: Tokenizer
    ) -> Objective:
        """The loss over ``policy``, and what else a method does in a step (see ``Objective``).

        ``reference`` is a frozen copy when the plugin's ``capabilities`` has ``"reference"`` and its section has no
        ``reference_free: true``, else None.

        Example::

            @hookimpl
            def ernie_build_objective(self, config, policy):
                return MyObjective(config, policy)
        """

    @hookspec(firstresult=True)
    def ernie_build_encoder(self, config: Section, tokenizer: Tokenizer, max_length: int) -> Encoder:
        """How one record becomes samples of at most ``max_length`` tokens. No paddle; also used by ``ernie data``.

        Example::

            @hookimpl
            def ernie_build_encoder(self, config, tokenizer, max_length):
                return MyEncoder(tokenizer, max_length)
        """

    @hookspec(firstresult=True)
    def ernie_forward_backward(self, run: Any, batches: Sequence[Batch]) -> StepOutput:
        """Forward and backward of one optimizer step over its micro-batches. The core's own implementation is
        ``trylast``; a pipeline replaces it. Called once per step on every rank.

        Example::

            @hookimpl
            def ernie_forward_backward(self, run, batches):
                return my_schedule(run.objective, batches)
        """

    # ---- format: called on one format plugin per data source
    @hookspec(firstresult=True)
    def ernie_match_row(self, row: Json) -> bool:
        """Whether a parsed JSON row has this format's shape; used by ``auto`` and by error messages. Pure, cheap.

        Example::

            @hookimpl
            def ernie_match_row(self, row):
                return "src" in row and "tgt" in row
        """

    @hookspec(firstresult=True)
    def ernie_parse_row(self, config: Section, row: Json, origin: Origin) -> Record:
        """One row as a record; raises ``RowError`` whose ``where`` is the JSON path. Called once per row.

        Example::

            @hookimpl
            def ernie_parse_row(self, row, origin):
                return Document(text=row["text"], origin=origin)
        """

    @hookspec(firstresult=True)
    def ernie_write_record(self, config: Section, record: Record) -> Json:
        """A record as one row, the way back of ``ernie_parse_row``, for ``ernie data convert``; raises ``RowError`` where
        the format has no words for it. Called once per record. Optional: without it nothing is converted to this format.

        Example::

            @hookimpl
            def ernie_write_record(self, record):
                return {"text": record.text}
        """

    # ---- scorer: called on each scorer of the run, after each rollout
    @hookspec(firstresult=True)
    def ernie_score_attempts(self, config: Section, attempts: Sequence[Attempt]) -> Sequence[float]:
        """What each answer is worth, one finite number per attempt in their order; called by methods with the capability
        ``"scorers"`` once per rollout on every rank. Pure: an attempt's score does not depend on the others.

        Example::

            @hookimpl
            def ernie_score_attempts(self, attempts):
                return [float(a.answer == a.reference) for a in attempts]
        """

    # ---- exporter, server: called outside a run
    @hookspec(firstresult=True)
    def ernie_export(self, config: Section, bundle: ModelBundle, target: Path) -> Path:
        """Write ``bundle`` into the existing, empty directory ``target``; returns it.

        Example::

            @hookimpl
            def ernie_export(self, bundle, target):
                write_everything(bundle, target)
                return target
        """

    @hookspec(firstresult=True)
    def ernie_serve(self, config: Section, directory: Path) -> int:
        """Serve the model in ``directory`` until stopped; returns the exit code.

        Example::

            @hookimpl
            def ernie_serve(self, config, directory):
                return run_server(directory, host=config.host, port=config.port)
        """
