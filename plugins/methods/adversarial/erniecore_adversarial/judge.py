"""A trained model as a judge of texts: how likely people wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.api import CheckpointError, UsageError
from erniecore.api.data import Document, Sample
from erniecore_adversarial.encoder import AdversarialEncoder

if TYPE_CHECKING:
    from erniecore.api.model import ModelBundle


class Judge:
    """log P(natural) of texts, by a model that an adversarial run has trained.

    Args:
        bundle: a model with a score head, and its tokenizer. batch_size: texts at a time.
    Raises:
        CheckpointError: no score head, or no tokenizer.
    """

    def __init__(self, bundle: ModelBundle, batch_size: int = 8) -> None:
        from erniecore.api.model_files import has_score

        if not has_score(bundle.architecture):
            raise CheckpointError(
                "this model cannot judge texts",
                expected="a model with a score head",
                fix="train one with --method adversarial",
            )
        if bundle.tokenizer is None:
            raise CheckpointError("this model has no tokenizer", expected="tokenizer.model beside the weights")
        self.model, self.tokenizer, self.batch_size = bundle.model, bundle.tokenizer, batch_size
        longest = int(bundle.architecture.get("max_position_embeddings") or 1 << 20)
        self.encoder = AdversarialEncoder(self.tokenizer, longest)

    @classmethod
    def open(cls, directory: str | Path, *, device: str = "cpu", batch_size: int = 8) -> Judge:
        """From a model directory, a run or a checkpoint. ``device``: empty within a run: the one that is open."""
        from erniecore.api.run import open_model

        return cls(open_model(directory, device=device), batch_size)

    def log_natural(self, texts: Sequence[str]) -> list[float]:
        """log P(natural) of each text; of one that is longer than the context the mean over its pieces.

        Raises:
            UsageError: a text without anything but whitespace.
        """
        import paddle
        from erniecore_reward.objective import read

        from erniecore.api.training import collate
        from erniecore_adversarial.losses import log_natural

        owners: list[int] = []
        samples: list[Sample] = []
        for index, text in enumerate(texts):
            if not text.strip():
                raise UsageError("there is no text to judge", where=f"text {index}")
            pieces = self.encoder.encode(Document(text))
            owners += [index] * len(pieces)
            samples += pieces
        sums, counts = [0.0] * len(texts), [0] * len(texts)
        self.model.eval()
        with paddle.no_grad():
            for start in range(0, len(samples), self.batch_size):
                batch = collate(
                    [[sample] for sample in samples[start : start + self.batch_size]], pad_id=self.tokenizer.pad_id
                )
                arrays = {"position_ids": batch.position_ids, "startend_row_indices": batch.startend_row_indices}
                given: dict[str, Any] = {name: paddle.to_tensor(values) for name, values in arrays.items()}
                hidden = self.model.features(paddle.to_tensor(batch.input_ids), **given).hidden
                places = [[row, len(samples[start + row]) - 1] for row in range(len(batch.input_ids))]
                found = log_natural(read(self.model, hidden.gather_nd(paddle.to_tensor(places)))).tolist()
                for owner, value in zip(owners[start:], found, strict=False):
                    sums[owner], counts[owner] = sums[owner] + value, counts[owner] + 1
        return [total / count for total, count in zip(sums, counts, strict=True)]
