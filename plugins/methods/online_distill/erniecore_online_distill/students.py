"""Students: a model with its optimizer and, while it learns, one more layer. How the loss is made is ``objective.py``."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle  # noqa: TID253
from erniecore_distill.opening import check_tokenizers, dtype_of, vocabulary

from erniecore.api import ConfigError, NumericsError, UsageError
from erniecore.api.adamw import AdamW
from erniecore.api.method import Tokenizer
from erniecore.api.model import ModelBundle
from erniecore.api.model_files import is_packed, save_model_directory
from erniecore.api.ops import square_sum
from erniecore.api.optimizer import AdamWConfig, ParameterRole, ProcessGroup, ShardSpec, TrainedParameter
from erniecore.api.run import open_model
from erniecore.api.training import is_decayed
from erniecore_online_distill.config import ASSISTANT, OnlineDistillConfig
from erniecore_online_distill.watching import last_layer

if TYPE_CHECKING:
    from paddle import Tensor


class Student:
    """A model that learns beside the teacher.

    Args:
        name: of the student. bundle: its model, which is trained from here on.
        auxiliary: whether a copy of the last layer is trained behind it.

    Attributes:
        model: a ``CausalLM``. auxiliary: the further layer, or None. It is not part of the model.
    """

    def __init__(self, name: str, bundle: ModelBundle, *, auxiliary: bool, weight_decay: float = 0.0) -> None:
        self.name, self.bundle = name, bundle
        self.model: Any = bundle.model
        self.model.train()
        self.auxiliary: Any = copy.deepcopy(last_layer(self.model)) if auxiliary else None
        for _, parameter in self._parameters():
            parameter.stop_gradient = False
        self.optimizer = AdamW(
            [self._trained(key, parameter, weight_decay) for key, parameter in self._parameters()], AdamWConfig()
        )
        self._updates = paddle.zeros([1], "int64")

    def _parameters(self) -> list[tuple[str, Tensor]]:
        own = list(self.model.named_parameters())
        if self.auxiliary is not None:
            own += [(f"auxiliary.{key}", parameter) for key, parameter in self.auxiliary.named_parameters()]
        return own

    def _trained(self, key: str, parameter: Tensor, weight_decay: float) -> TrainedParameter:
        decay = weight_decay if is_decayed(key, parameter.ndim) else 0.0
        spec = ShardSpec(tuple(parameter.shape))
        return TrainedParameter(f"students.{self.name}.{key}", parameter, ParameterRole.OTHER, spec, weight_decay=decay)

    def clear_gradients(self) -> None:
        """What a step that was not applied has left."""
        self.optimizer.clear_gradients()

    def update(self, rate: float, max_grad_norm: float, ranks: ProcessGroup | None) -> None:
        """One step of AdamW with the gradients that have been accumulated, summed over the ranks.

        Raises:
            NumericsError: a gradient is infinite or NaN; the student is as it was.
        """
        if ranks is not None:
            ranks.reduce_gradients(self.optimizer.slots)
        gradients = [gradient for _, gradient in self.optimizer.gradients()]
        if gradients:
            norm = math.sqrt(float(square_sum(gradients)))
            if not math.isfinite(norm):
                raise NumericsError(
                    "the gradient of a student is infinite or NaN",
                    where=f"method.students.{self.name}",
                    found=f"norm {norm}",
                    fix="lower method.learning_rate",
                )
            self.optimizer.step(rate, min(1.0, max_grad_norm / norm) if max_grad_norm and norm else 1.0)
            self.model.after_step(rate=rate)
        self.clear_gradients()
        paddle.assign(np.array([self.optimizer.num_updates], np.int64), output=self._updates)

    def state_tensors(self) -> dict[str, Tensor]:
        """Weights, moments and the number of updates, under names that begin with ``students.NAME.``."""
        weights = dict(self.model.state_dict())
        if self.auxiliary is not None:
            weights |= {f"auxiliary.{key}": value for key, value in self.auxiliary.state_dict().items()}
        named = {f"students.{self.name}.{key}": value for key, value in weights.items()}
        return {**named, **self.optimizer.state_tensors(), f"students.{self.name}.num_updates": self._updates}

    def restored(self) -> None:
        """:meth:`state_tensors` have been overwritten by those of a checkpoint."""
        self.optimizer.num_updates = int(self._updates.item())
        self.optimizer.restored(self.optimizer.state_tensors())


def open_students(config: OnlineDistillConfig, policy: Any, tokenizer: Tokenizer) -> list[Student]:
    """All that learn beside the teacher, the assistant first, in the teacher's precision.

    Raises:
        ConfigError: one with another vocabulary, or quantized. What ``open_model`` raises for a damaged one.
    """
    auxiliary = config.auxiliary_layer and config.attention > 0
    found = []
    for name, path in config.directories().items():
        key = "method.assistant" if name == ASSISTANT else f"method.students.{name}"
        try:
            bundle = open_model(path, dtype=dtype_of(policy), device="")
        except UsageError as error:
            raise ConfigError.at(key, str(error)) from error
        check_student(bundle, policy, tokenizer, key)
        found.append(Student(name, bundle, auxiliary=auxiliary, weight_decay=config.weight_decay))
    return found


def check_student(bundle: ModelBundle, policy: Any, tokenizer: Tokenizer, key: str) -> None:
    """Raise ``ConfigError`` at ``key`` unless the model can be trained and an id means the same for it and the teacher."""
    if is_packed(bundle.model):
        raise ConfigError.at(key, "a quantized model cannot be trained; name the model that it was made of")
    if vocabulary(bundle.model) != vocabulary(policy):
        raise ConfigError.at(
            key,
            f"the student has {vocabulary(bundle.model)} ids, the teacher {vocabulary(policy)}: they must be the same",
        )
    if bundle.tokenizer is not None:
        try:
            check_tokenizers(tokenizer, bundle.tokenizer)
        except ConfigError as error:
            raise ConfigError.at(key, error.message) from error


def write_student(student: Student, target: Path, *, steps: int) -> Path:
    """The student without its auxiliary layer as a model directory."""
    facts: Mapping[str, Any] = {"name": student.name, "method": "online-distill", "steps": steps}
    return save_model_directory(replace(student.bundle, provenance=dict(facts)), target)
