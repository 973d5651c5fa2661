"""Going back when the numbers of a run break down for good: the evidence, and a checkpoint from before. The decision that a
single step is bad is ``guards.py``.

Skipping a window of data after going back is what PaLM did about spikes (Chowdhery et al. 2022, section 5.1).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore_checkpoint.manifest import checkpoint_name, list_checkpoints, step_of
from erniecore_checkpoint.reader import load_checkpoint
from erniecore_checkpoint.verify import is_verified
from erniecore_system.durable import replace_file

from erniecore.engine import seed
from erniecore.engine.training.restore import restore
from erniecore.errors import NumericsError
from erniecore.types.process_group import ProcessGroup
from erniecore.types.samples import Batch

if TYPE_CHECKING:
    from erniecore.engine.training.state import TrainState
    from erniecore.engine.training.trainer import Trainer
    from erniecore.types.model import Tensor


def roll_back(trainer: Trainer, error: NumericsError, batches: Sequence[Batch]) -> None:
    """Continue from a checkpoint from before the first bad step, and skip the steps since ``train.rollback_window`` before
    it.

    Args:
        error: why the guard gave up. batches: of the step at which it did.
    Raises:
        NumericsError: ``error`` itself, after ``train.max_rollbacks`` of them or without a checkpoint.
    """
    state, train, skipped = trainer.state, trainer.context.settings.train, trainer.skipped
    if len(skipped.windows) >= train.max_rollbacks:
        raise error
    trainer.saver.settle(wait=True)
    first, last = max(1, state.guard.first_bad - train.rollback_window), state.step + 1
    path = checkpoint_for(trainer.ranks, trainer.context.out / "ckpt", first)
    if path is None:
        raise error
    window = skipped.add(first, last, f"{error.message}: {error.where}", rows_of(batches))
    state.optimizer.clear_gradients()
    restore(state, load_checkpoint(path, verify=trainer.ranks.rank == 0), trainer.ranks)
    trainer.saver.saved = (state.step, path)
    trainer.callbacks.warn(
        "rollback",
        step=last,
        to=state.step,
        checkpoint=str(path),
        skipped_steps=[window.first, window.last],
        reason=window.why,
        message=f"back to step {state.step}; steps {first} to {last} will be skipped ({skipped.path})",
    )


def checkpoint_for(ranks: ProcessGroup, root: Path, step: int) -> Path | None:
    """The checkpoint to go back to, the same on all ranks; see :func:`checkpoint_before`."""
    found = checkpoint_before(root, step) if ranks.rank == 0 else None
    path = ranks.all_gather_object("" if found is None else str(found))[0]
    return Path(path) if path else None


def checkpoint_before(root: Path, step: int) -> Path | None:
    """The newest verified checkpoint before ``step``; without one, the newest: skipped steps changed no weight."""
    whole = [path for path in list_checkpoints(root) if is_verified(path)]
    before = [path for path in whole if (step_of(path.name) or 0) < step]
    candidates = before or whole
    return candidates[-1] if candidates else None


def rows_of(batches: Sequence[Batch]) -> list[str]:
    """``file:line`` of the samples."""
    return [origin.place() for batch in batches for origin in batch.origins]


def keep_evidence(
    out: Path, seed_of_run: int, state: TrainState, step: int, loss: float, grad_norm: float, batches: Sequence[Batch]
) -> Path:
    """``bad/step-N.json`` in ``out``: what is needed to find out why: samples, seed, and the largest absolute value of every
    weight and gradient, ``null`` where one is not finite."""
    facts = {
        "step": step,
        "loss": _json_number(loss),
        "grad_norm": _json_number(grad_norm),
        "seed": seed.derive_seed(seed_of_run, seed.STEP, step),
        "rows": rows_of(batches),
        "weights": {name: _largest(p) for name, p in state.model.named_parameters()},
        "gradients": {name: _largest(gradient) for name, gradient in state.optimizer.gradients()},
    }
    path = out / "bad" / f"step-{step:08d}.json"
    path.parent.mkdir(exist_ok=True)
    replace_file(path, (json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return path


def _largest(tensor: Tensor) -> float | None:
    values: Any = tensor.detach().astype("float32").abs()
    return _json_number(float(values.max())) if bool(values.isfinite().all()) else None


def _json_number(value: float) -> float | None:
    return value if math.isfinite(value) else None


@contextmanager
def best_weights(trainer: Trainer) -> Iterator[None]:
    """The weights of the best step are those of the model within the block and stay it; the counters of the run are then what
    they were. All ranks together. Raises ``CheckpointError`` where the checkpoint of that step is missing or damaged."""
    state = trainer.state
    if state.best.step in (0, state.step):
        yield
        return
    before = state.step, state.tokens, state.seconds
    path = trainer.context.out / "ckpt" / checkpoint_name(state.best.step)
    restore(state, load_checkpoint(path, verify=trainer.ranks.rank == 0), trainer.ranks)
    yield
    state.step, state.tokens, state.seconds = before
