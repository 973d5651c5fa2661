"""What a run does when its numbers break down for good: keep the evidence, return to a checkpoint from before, and pass
over the data that led there. The decision that a single step is bad is ``guards.py``.

Passing over a window of data after going back is what PaLM did about spikes (Chowdhery et al. 2022, section 5.1).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.checkpoint import list_checkpoints, load_checkpoint
from erniecore.checkpoint.manifest import step_of
from erniecore.checkpoint.verify import is_verified
from erniecore.durable import replace_file
from erniecore.engine import seed
from erniecore.engine.training import state
from erniecore.errors import NumericsError
from erniecore.types import Batch

if TYPE_CHECKING:
    from erniecore.engine.training.session import Run
    from erniecore.types.model import Tensor


def roll_back(run: Run, error: NumericsError, batches: Sequence[Batch]) -> None:
    """Go on from a checkpoint from before the first bad step, without the steps since ``train.rollback_window`` before it.

    Args:
        error: why the guard gave up. batches: of the step at which it did.
    Raises:
        NumericsError: ``error`` itself, after ``train.max_rollbacks`` of them or without a checkpoint.
    """
    settings = run.settings.train
    if len(run.quarantine.windows) >= settings.max_rollbacks:
        raise error
    state.settle(run, wait=True)
    first_bad, last = run.guard.first_bad, run.step + 1
    first = max(1, first_bad - settings.rollback_window)
    found = checkpoint_before(run.out / "ckpt", first) if run.is_main else None
    heard = run.ranks.exchange("" if found is None else str(found))[0]
    if not heard:
        raise error
    path = Path(heard)
    window = run.quarantine.add(first, last, f"{error.message}: {error.where}", rows_of(batches))
    run.optimizer.clear_gradients()
    state.restore(run, load_checkpoint(path, verify=run.is_main))
    run.warn(
        "rollback",
        step=last,
        to=run.step,
        checkpoint=str(path),
        passed_over=[window.first, window.last],
        reason=window.why,
        message=f"back to step {run.step}; steps {first} to {last} will be passed over ({run.quarantine.path})",
    )


def checkpoint_before(root: Path, step: int) -> Path | None:
    """The newest verified checkpoint before ``step``; without one, the newest: skipped steps changed no weight."""
    whole = [path for path in list_checkpoints(root) if is_verified(path)]
    before = [path for path in whole if (step_of(path.name) or 0) < step]
    candidates = before or whole
    return candidates[-1] if candidates else None


def rows_of(batches: Sequence[Batch]) -> list[str]:
    """``file:line`` of the samples."""
    return [f"{origin.file}:{origin.line}" for batch in batches for origin in batch.origins]


def keep_evidence(run: Run, step: int, loss: float, grad_norm: float, batches: Sequence[Batch]) -> Path:
    """``bad/step-N.json``: what is needed to find out why: samples, seed, and the largest absolute value of every weight
    and gradient, ``null`` where one is not finite."""
    facts = {
        "step": step,
        "loss": _json_number(loss),
        "grad_norm": _json_number(grad_norm),
        "seed": seed.derive_seed(run.seed, seed.STEP, step),
        "rows": rows_of(batches),
        "weights": {name: _largest(p) for name, p in run.policy.named_parameters()},
        "gradients": {name: _largest(gradient) for name, gradient in run.optimizer.gradients()},
    }
    path = run.out / "bad" / f"step-{step:08d}.json"
    path.parent.mkdir(exist_ok=True)
    replace_file(path, (json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return path


def _largest(tensor: Tensor) -> float | None:
    values: Any = tensor.detach().astype("float32").abs()
    return _json_number(float(values.max())) if bool(values.isfinite().all()) else None


def _json_number(value: float) -> float | None:
    return value if math.isfinite(value) else None
