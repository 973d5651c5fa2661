"""The core's own sections: run, data, train, eval, checkpoint, log. Everything else belongs to a plugin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from erniecore.kinds import MANY, RUN_KINDS
from erniecore.sections import Section


class RunSection(Section):
    """What this run is and where it writes."""

    name: str = Field("", description="Name of the run; empty: made from date, method and model.")
    out: str = Field(
        "",
        description="Run directory. Empty: `runs/<name>`; without a name, that of the newest unfinished run of the same "
        "settings and data in `runs/`, or a new one.",
    )
    seed: int = Field(42, ge=0, lt=2**32, description="Every random stream derives from (seed, purpose, step).")
    deterministic: bool = Field(
        True,
        description="Refuse a device whose results are not reproducible bit for bit (those of `cpu` are). `false`: any device; "
        "repeated or resumed runs may then differ in the last bits.",
    )
    resume: str = Field(
        "auto",
        description="`auto`: continue from the newest verified checkpoint of `out` if there is one. `never`: "
        "start anew and refuse a directory that holds a run. `must`: fail without one. Or a checkpoint directory.",
    )

    accept_changes: tuple[
        Literal["base", "tokenizer", "template", "adapter", "reference", "reward", "plugins"], ...
    ] = Field(
        (),
        description="Parts of the run fingerprint that may have changed since the checkpoint that the run continues from; any "
        "other change is refused. `base`: config.json and weights of `model.path`. `adapter`: the saved adapter that it "
        "started from. `reference`, `reward`: teachers and reward models. `plugins`: versions.",
    )
    until: int = Field(
        0, ge=0, description="Save and stop (exit 75) after this step, as if asked to; 0: run to the end."
    )
    hang_timeout: float = Field(
        1800.0,
        ge=0,
        description="Seconds without a step, an evaluation batch or communication with other processes after which a run counts "
        "as hung: the stacks of all its processes are written to `logs/`, and it exits with 3; 0: never.",
    )
    max_minutes: float = Field(
        0.0,
        ge=0,
        description="Save and stop (exit 75) after so many minutes, such as a scheduler's time limit; 0: no limit. The same "
        "command resumes.",
    )


class Source(Section):
    """One data file or directory."""

    path: str = Field(
        description="File (.jsonl, .json, .txt, also .gz; .parquet, .arrow) or data set directory; `DIR:train` names a split."
    )
    format: str = Field("", description="Format plugin for this source; empty: `data.format`.")
    weight: float = Field(
        1.0, gt=0, description="Sampling weight of this source where `data.mix` draws by weight; any positive number."
    )
    epochs: float = Field(
        1.0,
        gt=0,
        description="Passes over this source in one epoch: 2.5 takes two whole passes and half of a third, whose other "
        "half comes first in the next epoch. Not with `data.mix: weighted`, where the weights decide.",
    )


class DataSection(Section):
    """The data, and how it becomes batches."""

    train: tuple[Source, ...] = Field((), description="Training sources; a plain string means its path.")
    eval: tuple[Source, ...] = Field((), description="Validation data for `eval.every` and the final evaluation.")
    format: str = Field("auto", description="Format plugin for sources that name none.")
    max_seq_len: int = Field(2048, ge=2, description="Maximum tokens per sample and per packed sequence.")
    max_patches: int = Field(
        0,
        ge=0,
        description="Maximum patches of images per sample and per packed sequence, as `max_seq_len` for tokens: what the vision "
        "tower reads at once, up to `train.batch_size` times as many. A row with more is dropped. 0: no limit.",
    )
    too_long: Literal["auto", "drop", "turns", "truncate"] = Field(
        "auto",
        description="What becomes of rows with more than `max_seq_len` tokens; all of it is counted. `drop`: they are dropped. "
        "`turns`: the earliest turns are left out, then the system text; a row whose last turn does not fit is dropped. "
        "`truncate`: of conversations the last turns are left out, then question or answer are cut; of preferences the earliest "
        "turns are left out, then the question is cut at its start, then both answers at their ends. `auto`: the method's own, "
        "`truncate` for `sft`, `distill` and preferences, `turns` for `reward` and reinforcement learning.",
    )
    packing: Literal["none", "padding-free", "sequential", "greedy"] = Field(
        "greedy",
        description="`none`: one sample per sequence, padded to the longest of the batch. `padding-free`: the samples of a batch "
        "concatenated into one sequence without padding. `sequential`: fill sequences of `max_seq_len` in order. `greedy`: "
        "best fit within a buffer of `packing_buffer` samples. Packed samples never attend to each other.",
    )
    packing_buffer: int = Field(500, ge=1, description="Samples that greedy packing chooses from.")
    static_shapes: bool = Field(
        False,
        description="Pad every batch to `train.batch_size` sequences of `max_seq_len` tokens (in evaluation `eval.batch_size`), "
        "for devices that compile programs for each shape. Losses stay the same; the share of positions that hold tokens is in "
        "`data_report.json` (`fill_rate`).",
    )
    shuffle: bool = Field(True, description="Shuffle in every epoch; the order is a pure function of (seed, epoch).")
    mix: Literal["concat", "weighted", "interleave-under", "interleave-over"] = Field(
        "concat",
        description="What an epoch takes of several sources. `concat`: every sample once (or `epochs` times). `weighted`: as "
        "many as `concat`, split exactly by `weight`; smaller sources repeat, of larger ones the rest comes in the next "
        "epoch. `interleave-under`: by weight until the first source is used up. `interleave-over`: by weight until the "
        "last one is; smaller ones repeat.",
    )
    epoch_samples: int = Field(
        0,
        ge=0,
        description="Samples per epoch instead of what `mix` says; 0: off. Split exactly by `weight` (`mix: weighted`) or by "
        "the sources' sizes (`mix: concat`); a source is used up before any of its samples is drawn again.",
    )
    eval_fraction: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Fraction of the training data that is split off for validation when `data.eval` is empty.",
    )
    max_drop: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Largest fraction of examples that may be dropped before the run refuses to start.",
    )
    workers: int = Field(
        0, ge=0, description="Processes that read and tokenize; 0: in this process. The result is the same."
    )

    cache: str = Field(
        "auto",
        description="Where tokenized samples are cached. `auto`: files of 64 MiB and more (together) on disk, in "
        "`$XDG_CACHE_HOME/erniecore/tokens` or `~/.cache/erniecore/tokens`, smaller ones in memory. `off`: in memory. Or a "
        "directory. Samples on disk are used again by every run with the same file content, tokenizer, template and method, "
        "and cost a run some 20 bytes of memory each; on disk 8 bytes per token. See `ernie data cache`.",
    )

    @field_validator("eval")
    @classmethod
    def _eval_once(cls, eval: tuple[Source, ...]) -> tuple[Source, ...]:
        if any(source.epochs != 1 or source.weight != 1 for source in eval):
            raise ValueError("validation data is read once: its sources have neither weight nor epochs")
        return eval

    @field_validator("mix")
    @classmethod
    def _mix_fits(cls, mix: str, info: ValidationInfo) -> str:
        sources: tuple[Source, ...] = info.data.get("train", ())
        if mix == "concat" and len({source.weight for source in sources}) > 1:
            raise ValueError("concat takes everything, so `weight` has no effect; choose weighted, or give `epochs`")
        if mix == "weighted" and any(source.epochs != 1 for source in sources):
            raise ValueError(
                "the weights decide how much of a source is taken, so `epochs` has no effect; leave it out"
            )
        return mix

    @field_validator("epoch_samples")
    @classmethod
    def _length_fits(cls, epoch_samples: int, info: ValidationInfo) -> int:
        mix = info.data.get("mix")
        if epoch_samples and mix not in ("concat", "weighted", None):
            raise ValueError(f"{mix} decides itself how long an epoch is; use it with concat or weighted")
        return epoch_samples


#: built-in values of ``train.schedule``, see ``erniecore/engine/training/schedule.py``
SCHEDULES = (
    "linear",
    "cosine",
    "cosine-with-restarts",
    "polynomial",
    "inverse-sqrt",
    "constant",
    "constant-with-warmup",
    "wsd",
)


class TrainSection(Section):
    """Training length, batch size, optimizer, learning rate and precision."""

    max_steps: int = Field(0, ge=0, description="Optimizer steps; 0: from `epochs`.")
    epochs: float = Field(1.0, gt=0, description="Passes over the data when `max_steps` is 0.")
    batch_size: int = Field(1, ge=1, description="Sequences per micro-batch and rank.")
    accumulation: int = Field(1, ge=1, description="Micro-batches per optimizer step.")
    learning_rate: float = Field(3e-5, gt=0, description="Peak learning rate.")
    min_lr: float = Field(0.0, ge=0, description="Learning rate at the end of the decay.")
    warmup_steps: int = Field(0, ge=0, description="Linear warm-up from 0; wins over `warmup_ratio`.")
    warmup_ratio: float = Field(0.0, ge=0, lt=1, description="Warm-up as a fraction of all steps.")
    schedule: str = Field(
        "cosine",
        description="Learning rate after the warm-up: `"
        + "`, `".join(SCHEDULES)
        + "`, or a plugin of kind `schedule`, whose "
        "settings are in `schedules.NAME`. `wsd`: constant, then a tail of `decay_steps`.",
    )
    decay_steps: int = Field(0, ge=0, description="Length of the WSD tail; 0: a tenth of all steps.")
    decay_shape: Literal["linear", "1-sqrt", "half-life"] = Field("linear", description="Shape of the WSD tail.")
    power: float = Field(1.0, gt=0, description="Exponent of the polynomial schedule.")
    cycles: int = Field(1, ge=1, description="How often `cosine-with-restarts` falls from the peak, in equal parts.")
    weight_decay: float = Field(
        0.01, ge=0, description="For matrices; norms, biases and other vectors are not decayed."
    )
    max_grad_norm: float = Field(1.0, ge=0, description="Clip gradients to this global norm; 0: off.")
    layer_lr_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Lowest factor of layer-wise learning-rate decay: embeddings get it, the "
        "head 1, layers in between linearly. 1: off.",
    )
    freeze: tuple[str, ...] = Field(
        (),
        description="Patterns (`*`, `?`, `[…]`) over the names of parameters that are not trained, such as `*embed_tokens*` or "
        "`*layers.[0-3].*`: they have neither gradients nor optimizer state. A pattern that fits none is refused. With an "
        "adapter, `adapter.targets` says what is trained.",
    )
    ema: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Decay of an exponential moving average of the weights, saved with them and used "
        "in evaluation; 0: off.",
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="Dtype of weights and matrix multiplications; the device must support it."
    )
    matmul_precision: Literal["highest", "high", "medium"] = Field(
        "highest",
        description="Of float32 products in linear layers, attention and the head, in PyTorch's words: `highest` is float32; "
        "`high` lets kernels make each factor of two bfloat16 numbers (about 16 bits), `medium` of one. Where no kernel is "
        "faster with it, products stay float32, with a warning.",
    )
    recompute: Literal["none", "full", "attention", "core-attention"] = Field(
        "none",
        description="Recompute in the backward pass instead of storing: whole layers, attention blocks, or softmax(QK)V only.",
    )
    loss_chunk: int = Field(
        1024,
        ge=0,
        description="Positions per chunk of head and loss, so that the full logits are never materialized; 0: no chunks.",
    )
    max_skips: int = Field(
        3,
        ge=0,
        description="Consecutive steps with a non-finite loss or gradient that are skipped before the run goes back to a "
        "checkpoint (`max_rollbacks`) or stops (exit 7).",
    )
    spike_factor: float = Field(
        0.0,
        ge=0,
        description="Also skip a step whose gradient norm exceeds this multiple of the median of the last 64; 0: off.",
    )
    max_rollbacks: int = Field(
        1,
        ge=0,
        description="How often a run may go back to the newest checkpoint before the first bad step and go on without the "
        "data of the bad steps. They are listed in `skipped_steps.json`.",
    )
    rollback_window: int = Field(0, ge=0, description="Steps before the first bad one that are skipped as well.")


class EvalSection(Section):
    """Evaluation during and after training."""

    every: int = Field(0, ge=0, description="Evaluate every so many steps; 0: only at the end.")
    max_steps: int = Field(0, ge=0, description="Micro-batches per evaluation; 0: all.")
    batch_size: int = Field(0, ge=0, description="Sequences per micro-batch; 0: `train.batch_size`.")
    best: str = Field(
        "",
        description="Metric of the evaluation by which the best step is chosen, such as `loss`, `accuracy` or (of methods with "
        "reward functions) `reward`: its checkpoint is kept, and `model/` has its weights. Empty: the weights of the last step.",
    )
    greater_is_better: bool | None = Field(
        None, description="Of `best`. Empty: `false` for `perplexity` and what ends with `loss`, `true` for all others."
    )
    min_change: float = Field(0.0, ge=0, description="An evaluation is better by more than this.")
    patience: int = Field(
        0, ge=0, description="Training ends after so many evaluations in a row that are no better; 0: at its last step."
    )

    @property
    def greater(self) -> bool:
        """Whether a greater value of ``best`` is better."""
        return (
            self.greater_is_better
            if self.greater_is_better is not None
            else not (self.best == "perplexity" or self.best.endswith("loss"))
        )

    @model_validator(mode="after")
    def _complete(self) -> EvalSection:
        if self.best and not self.every:
            raise ValueError("best needs several evaluations: set every")
        if self.patience and not self.best:
            raise ValueError("patience needs best, the metric that has to become better; such as best=loss")
        return self


class CheckpointSection(Section):
    """Saving and keeping checkpoints."""

    every: int = Field(0, ge=0, description="Save every so many steps; 0: by the clock and at the end.")
    minutes: float | None = Field(
        None,
        ge=0,
        description="Save also when so many minutes have passed since the last save; 0: only by steps. Empty: 10, or "
        "as many as keep what saving costs (training waits, and steps are slower) at 1 % of the time.",
    )
    background: bool = Field(
        True,
        description="Write the checkpoints of `every` and `minutes` while training goes on; needs memory for a copy of what "
        "is saved. `false`: training waits.",
    )
    max_failures: int = Field(
        2,
        ge=0,
        description="Consecutive background saves that may fail, each with a warning, before the run stops (exit 5).",
    )
    keep: int = Field(3, ge=2, description="Checkpoints kept; never fewer than two verified ones.")
    final: bool = Field(True, description="Save a checkpoint at the last step.")
    export: bool = Field(True, description="Write `model/` in the Hugging Face format at the end.")
    average: bool = Field(
        True,
        description="Write the moving average of the weights to `model/`, and read it from a checkpoint, if `train.ema` keeps "
        "one; `false`: the weights of the last step.",
    )


class LogSection(Section):
    """Console output and the report."""

    every: int = Field(10, ge=1, description="Steps between two lines on a console that is not a terminal.")
    report: bool = Field(
        True, description="Write report.html and loss.png at the end, where erniecore-report is installed."
    )


#: The core's sections by name, in the order in which they are shown.
CORE_SECTIONS: dict[str, type[Section]] = {
    "run": RunSection,
    "data": DataSection,
    "train": TrainSection,
    "eval": EvalSection,
    "checkpoint": CheckpointSection,
    "log": LogSection,
}

#: what stands at the top of a settings file of ours
OURS = frozenset((*CORE_SECTIONS, "extends", *RUN_KINDS, *MANY))


def is_ours(content: Mapping[str, Any]) -> bool:
    """Whether a parsed file has a section of ours, or nothing at all."""
    return not content or not OURS.isdisjoint(content)
