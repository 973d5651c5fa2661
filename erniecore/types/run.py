"""Training and the machine: objectives, devices, ranks, and what callbacks see of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from erniecore.types.completions import RewardFunction
    from erniecore.types.model import Layer, Tensor
    from erniecore.types.process_group import ProcessGroup
    from erniecore.types.samples import Array, Batch
    from erniecore.types.text import Tokenizer


@dataclass(frozen=True, slots=True)
class LossOutput:
    """What an objective returns for one micro-batch.

    Attributes:
        loss: scalar to call ``backward`` on, already divided by the step's totals.
        metrics: name -> (sum, weight); the step reports sum over micro-batches / weight over micro-batches.
            ``"loss"`` is always there. Sums may be 0-d tensors (read once per step) or floats.
    """

    loss: Tensor
    metrics: Mapping[str, tuple[Tensor | float, float]]


class Objective(ABC):
    """A training objective: pure given the model's weights. A method derives its own from this class.

    A step over several micro-batches (and ranks) first adds up ``normalizers`` of all of them, then calls the
    objective on each with the totals: 1x4 and 4x1 micro-batches give the same gradient. What follows ``__call__`` is
    for objectives that need more than that; by default it does nothing.

    Attributes:
        is_nll: whether the loss is a likelihood of text, so that it has a perplexity.
        repeats: how many steps in a row get the same batches from the data, e.g. to learn from a rollout more than
            once. ``prepare`` is called for each of these steps.
        loss_chunk: positions per chunk of head and loss; the engine sets ``train.loss_chunk``.
        reward_functions: those of the run; the engine sets them for methods with the capability ``"rewards"``, which
            need at least one.
        batches_of: this rank's batches of any step of training, 1-based, also of one that is to come. The engine sets it.
        all_gather_object: a JSON value of this rank -> those of all ranks; every rank calls it equally often. The engine sets it.
        counts: whether what this rank finds in a batch is found and enters sums over ranks: of ranks with the same rows one
            does, the one that has the model's head. The engine sets it.
    """

    is_nll: bool = True
    repeats: int = 1
    loss_chunk: int = 1024
    reward_functions: Sequence[RewardFunction] = ()
    batches_of: Callable[[int], Sequence[Batch]] = staticmethod(lambda step: [])
    all_gather_object: Callable[[Any], list[Any]] = staticmethod(lambda value: [value])
    counts: bool = True

    def summed(self, values: Sequence[float]) -> list[float]:
        """Sums over all rows of all ranks; every rank calls it equally often, with as many values."""
        parts = self.all_gather_object([float(value) for value in values] if self.counts else [0.0] * len(values))
        return [sum(column) for column in zip(*parts, strict=True)]

    @abstractmethod
    def normalizers(self, batch: Batch) -> Mapping[str, float]:
        """What this batch adds to each denominator, e.g. ``{"tokens": 311}``. numpy only, no paddle."""

    @abstractmethod
    def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
        """Forward pass and loss of one micro-batch."""

    def begin(self, batches: Iterator[Batch], *, step: int, out: Path) -> Mapping[str, object]:
        """Called once per session before its first step, with the weights as they are after ``step`` steps.

        Args:
            batches: every training and held-out sample once, the same on every rank; all ranks use them, or none.
            out: the run's directory.
        Returns:
            What becomes a ``begin`` event, if anything.
        """
        return {}

    def prepare(self, batches: Sequence[Batch], *, step: int, seed: int) -> Sequence[Batch]:
        """The batches to train on in this step in place of the data's, e.g. rollouts of the prompts. Called once per
        training step, before ``normalizers``; a pure function of the weights and its arguments; ``seed`` is the step's
        own."""
        return batches

    def after_step(self, *, step: int, rate: float) -> None:
        """Called after each update of the weights, with the learning rate that it had."""

    def state_tensors(self) -> Mapping[str, Tensor]:
        """State of its own that a checkpoint must hold, e.g. a reference that moves; the same names and shapes at every
        step. What has the name of one of the model's parameters is divided among ranks as that is; the rest is whole, and
        alike on all of them."""
        return {}

    def load_state_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Restore the tensors of :meth:`state_tensors` from a checkpoint."""

    @property
    def carries(self) -> bool:
        """Whether :meth:`carried` may differ by rank under the same names, so that one process alone can have it."""
        return self.repeats > 1

    def carried(self) -> Mapping[str, Array]:
        """Arrays of any shape that later steps need, e.g. a rollout that is not learned to the end yet; saved in the
        checkpoint as group "carried". Of several ranks that give the same name, one array is kept."""
        return {}

    def load_carried(self, arrays: Mapping[str, Array]) -> None:
        """Restore the arrays of :meth:`carried` of all ranks from a checkpoint."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Summed over the micro-batches of one step: metrics as (sum, weight), and tokens seen. Sums may be 0-d tensors:
    the loop reads all of them, with the gradient norm, in one transfer."""

    metrics: Mapping[str, tuple[Tensor | float, float]]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a callback measured of the model, the same on every rank.

    Attributes:
        metrics: name -> value; by these names `eval.best` finds them. Other plugins have other names: begin with the plugin's.
        lower_is_better: those of them of which a lower value is better.
        examples: that were scored. tokens: that the model wrote for it. Both of all ranks together.
        samples: file in the run directory with some of them, as JSON lines with ``step``, ``prompt``, ``completion``,
            ``reference`` and ``scores``; empty: there is none.
    """

    metrics: Mapping[str, float]
    lower_is_better: frozenset[str] = frozenset()
    examples: int = 0
    tokens: int = 0
    samples: str = ""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The processes of this run. ``master``: ``host:port`` where they meet; empty for one process."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    num_nodes: int = 1
    master: str = ""


@dataclass(frozen=True, slots=True)
class ParallelPlan:
    """Degrees by axis (``data``, ``tensor``, ``pipeline``, ``expert``, ``context``, ``sharding``) and this rank's
    place among the data-parallel ranks.

    Attributes:
        split: number of layers of each part of a pipeline, in the order of the model; part i belongs to stage i modulo the
            degree ``pipeline``. Empty without a pipeline.
        shares: micro-batches of a step on each of the data-parallel ranks, where they differ.
    """

    degrees: Mapping[str, int]
    data_rank: int = 0
    data_size: int = 1
    split: tuple[int, ...] = ()
    shares: tuple[int, ...] = ()

    def micro_batches(self, accumulation: int) -> int:
        """Of a step on all ranks together; ``accumulation``: ``train.accumulation``."""
        return sum(self.shares) or accumulation * self.data_size


class Device(ABC):
    """A device, not opened or open. Building one imports nothing heavy; ``open`` imports paddle.

    Attributes:
        name: of its plugin.
        dtypes: dtypes that matrix products run in, e.g. ``{"float32"}``.
        deterministic: whether results repeat bit for bit when asked to (``run.deterministic``): on the same hardware, with the
            same software and settings; where the device's own settings choose such kernels, what these say.
        lacks: ability -> what to do without it. Plugins name the abilities that they need in ``Plugin.needs``.
        is_host: it computes on the host's processor, and its tensors are in the memory of the process. Peaks of such a
            device count the whole process; rates that were measured on one processor do not hold on another.
    """

    name: str
    dtypes: frozenset[str]
    deterministic: bool
    lacks: Mapping[str, str] = MappingProxyType({})
    is_host: bool = False

    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """Variables to set before paddle is imported. Pure, sorted, nothing host-specific in the values."""

    @abstractmethod
    def open(self) -> None:
        """Import paddle and select the device; raises ``DeviceUnavailable`` with the vendor's install line."""

    @abstractmethod
    def describe(self) -> Mapping[str, str]:
        """Facts for the banner: processor or accelerator, cores or count, memory."""

    @abstractmethod
    def peak_memory(self) -> int:
        """Highest memory use so far, bytes."""

    @property
    def threads(self) -> int:
        """Host threads per operator; 0: the host does not compute."""
        return 0

    def peak_tensors(self) -> int:
        """Most bytes that tensors held so far, where :meth:`peak_memory` counts more."""
        return self.peak_memory()

    def preflight(self) -> None:
        """Raises ``DeviceUnavailable`` when what is installed already shows that it cannot be opened; imports nothing."""

    def warnings(self) -> Sequence[str]:
        """What the user should know before trusting results."""
        return ()

    def synchronize(self) -> None:
        """Wait until everything that was started on the device is done; for measurements."""


class RunView(Protocol):
    """What callbacks see of a run: read-only, the same object for the whole session. ``step`` changes while the run trains;
    everything else stays. A callback changes the run by nothing but what its hook returns, and by :meth:`request_stop`."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the model, with its chat template."""
        ...

    @property
    def parallel_plan(self) -> ParallelPlan:
        """How ranks share the run: of ``data_size`` shares of the examples, this one's is ``data_rank``."""
        ...

    @property
    def out(self) -> Path:
        """Directory of the run; a callback writes only files of its own name into it."""
        ...

    @property
    def settings(self) -> Any:
        """The frozen settings of the run, by section."""
        ...

    @property
    def step(self) -> int:
        """Optimizer steps done so far; in ``ernie_step_end`` the present one included."""
        ...

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        ...

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which alone gets events."""
        ...

    @property
    def model(self) -> Layer:
        """What is trained, as the parallel strategy made it; the weights of this rank."""
        ...

    @property
    def objective(self) -> Objective:
        """The loss of the run's method."""
        ...

    @property
    def ranks(self) -> ProcessGroup:
        """The process group of the run; what one rank calls of it, all of them must."""
        ...

    @property
    def console(self) -> str:
        """How the run is to be shown: ``auto``, ``live``, ``lines``, ``json`` or ``none``."""
        ...

    def copy_state(self, directory: Path) -> Mapping[str, Any]:
        """Write this rank's files of a checkpoint of the present step into ``directory``, an existing one of its own; all ranks
        call it together. Returns what makes a checkpoint of the files of all ranks: ``step``, ``state``, ``config_hash``,
        ``versions``, ``groups`` and ``files`` (name -> size and hash). Raises ``CheckpointError`` on all of them."""
        ...

    def emit(self, event: str, **fields: object) -> None:
        """Append one event to events.jsonl and to every callback that shows events."""
        ...

    def stopping(self) -> str:
        """Why the run is to stop now, for what takes long in ``ernie_evaluate``: what it returns after that does not count. The
        same on all ranks, which call it equally often."""
        ...

    def request_stop(self, reason: str) -> None:
        """Ask for the end of training after the present step, as if it were the last one: evaluation, checkpoint and model
        directory follow, and the run is finished. One rank suffices; all of them end after the same step. The first reason
        counts, and becomes an ``early_stop`` event. Raises ``ValueError`` for an empty reason."""
        ...
