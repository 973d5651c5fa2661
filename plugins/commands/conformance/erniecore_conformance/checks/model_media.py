"""Checks for a model that reads images or other media: a plugin with ``conformance_media``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from erniecore_conformance.check import Check
from erniecore_conformance.checks.model import build, joined_rows, rows_with_media
from erniecore_conformance.expect import NotApplicable, ensure, ensure_close, ensure_raises
from erniecore_conformance.subjects import Subject

if TYPE_CHECKING:
    from erniecore_conformance.checks.model import Row


def _rows(subject: Subject) -> tuple[Any, list[Row]]:
    model, architecture = build(subject)
    rows = rows_with_media(subject, architecture)
    if not rows:
        raise NotApplicable("the plugin has no conformance_media")
    ensure(len(rows) > 1, "conformance_media gives fewer than two rows")
    return model, rows


def check_model_attends_to_its_media(subject: Subject) -> None:
    """Other pixels change the logits of the last token of a row (by more than 1e-6), and never those of its first token,
    which stands before all media (<= 1e-6)."""
    import numpy as np

    from erniecore_conformance.toys.compute import logits

    model, rows = _rows(subject)
    ids, inputs = joined_rows(rows[:1])
    other = {name: 1 - array if array.dtype.kind == "f" else array for name, array in inputs.items()}
    before, after = logits(model, ids, **inputs), logits(model, ids, **other)
    ensure_close(after[:, 0], before[:, 0], 1e-6, "logits of the token before all media")
    ensure(float(np.abs(after[:, -1] - before[:, -1]).max()) > 1e-6, "the last token does not see other media")


def check_model_media_belong_to_their_rows(subject: Subject) -> None:
    """Rows with media in one batch have the logits that each has alone (<= 1e-5)."""
    from erniecore_conformance.toys.compute import logits

    model, rows = _rows(subject)
    ids, inputs = joined_rows(rows)
    together = logits(model, ids, **inputs)
    for i, row in enumerate(rows):
        one, own = joined_rows([row])
        ensure_close(together[i : i + 1], logits(model, one, **own), 1e-5, f"logits of row {i} in a batch")


def check_model_refuses_media_that_do_not_fit(subject: Subject) -> None:
    """More media than placeholders, and placeholders for more than there are, raise ``ValueError``."""
    from erniecore_conformance.toys.compute import logits

    model, rows = _rows(subject)
    (one, own), (both, all_media) = joined_rows(rows[:1]), joined_rows(rows[:2])
    ensure_raises(ValueError, lambda: logits(model, one, **all_media), "a row with the media of two")
    ensure_raises(ValueError, lambda: logits(model, both, **own), "two rows with the media of one")


CHECKS = (
    Check(check_model_attends_to_its_media),
    Check(check_model_media_belong_to_their_rows),
    Check(check_model_refuses_media_that_do_not_fit),
)
