"""Using a plugin's hooks once, by kind: what must stay light (no paddle), and everything that a subject can do here.

Checks that compare a plugin before and after use build on this; it judges nothing itself.
"""

from __future__ import annotations

import contextlib
import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.api.quantizer import QuantizerCapability
from erniecore_conformance.architectures import architecture_of
from erniecore_conformance.subjects import Subject

if TYPE_CHECKING:
    pass


def encoder_of(subject: Subject, max_length: int = 64, too_long: str = "auto") -> Any:
    """A method plugin's encoder over the toy tokenizer."""
    from erniecore_conformance.toys.tokenizer import ToyTokenizer

    return subject.call(
        "ernie_build_encoder",
        config=subject.config(),
        tokenizer=ToyTokenizer(),
        max_length=max_length,
        too_long=too_long,
    )


def _light_device(subject: Subject) -> None:
    from erniecore.api.device import Cluster

    device = subject.call("ernie_open_device", config=subject.config(), cluster=Cluster(), shape=None)
    device.environment()


def _light_parallel(subject: Subject) -> None:
    from erniecore.api.device import Cluster

    subject.call("ernie_plan_parallel", config=subject.config(), cluster=Cluster(), shape=None)


def _light_model(subject: Subject) -> None:
    _, architecture = architecture_of(subject)
    subject.call("ernie_model_layout", architecture=architecture)
    subject.call("ernie_state_adapter", architecture=architecture).maps("pt")


def _light_method(subject: Subject) -> None:
    from erniecore_conformance.toys.data import toy_records

    encoder = encoder_of(subject)
    for record in toy_records(encoder.accepts):
        encoder.encode(record)


def _light_format(subject: Subject) -> None:
    from erniecore.api import RowError
    from erniecore.api.method import Origin

    for row in (*copy.deepcopy(getattr(subject.plugin, "examples", ())), {"unknown": 1}):
        if subject.call("ernie_match_row", row=row):
            with contextlib.suppress(RowError):
                subject.call("ernie_parse_row", config=subject.config(), row=row, origin=Origin("toy.jsonl", 1))


def _light_importer(subject: Subject) -> None:
    from erniecore.api.importer import ImportTarget

    content = {
        "no_such_key": 1,
        **{name: key.default for name, key in subject.call("ernie_describe_keys").keys.items()},
    }
    subject.call("ernie_match_settings", content=content)
    subject.call("ernie_import_settings", content=content, target=ImportTarget())


def _light_forecaster(subject: Subject) -> None:
    from erniecore_conformance.toys.forecaster import toy_run

    subject.call("ernie_forecast", run=toy_run())


def _light_optimizer(subject: Subject) -> None:
    from erniecore.api.optimizer import ParameterRole, ParameterSpec

    specs = [ParameterSpec("layers.0.up.weight", (4, 6), "bfloat16", ParameterRole.MATRIX)]
    subject.call("ernie_optimizer_bytes", config=subject.config(), parameters=specs)


def _use_optimizer(subject: Subject) -> None:
    from erniecore_conformance.toys.distances import Distances

    _light_optimizer(subject)
    Distances(subject).train(2)


def _use_schedule(subject: Subject) -> None:
    subject.call("ernie_schedule_factor", config=subject.config(), step=3, length=10, warmup=2)


def _use_reward(subject: Subject) -> None:
    from erniecore_conformance.toys.data import toy_completions

    subject.call("ernie_compute_rewards", config=subject.config(), completions=toy_completions())


def _use_callback(subject: Subject) -> None:
    from erniecore_conformance.toys.run import lifecycle

    with tempfile.TemporaryDirectory() as out:
        lifecycle(subject, Path(out))


def _use_adapter(subject: Subject) -> None:
    from erniecore_conformance.toys.paddle_lm import toy_model

    subject.call("ernie_adapt_model", config=subject.config(), model=toy_model())


def _use_quantizer(subject: Subject) -> None:
    from erniecore_conformance.toys.paddle_lm import toy_model

    for phase in sorted({QuantizerCapability.TRAIN, QuantizerCapability.EXPORT} & subject.plugin.capabilities):
        subject.call("ernie_quantize_model", config=subject.config(), model=toy_model(), phase=phase)


def _use_exporter(subject: Subject) -> None:
    from erniecore_conformance.toys.bundle import bundle_for

    bundle = bundle_for(subject)
    with tempfile.TemporaryDirectory() as target:
        subject.call("ernie_export", config=subject.config(), bundle=bundle, target=Path(target))


def command_call(subject: Subject, *arguments: str) -> tuple[int, str]:
    """Exit code and output of a command plugin called with ``arguments``."""
    import typer
    from typer.testing import CliRunner

    app = subject.plugin.app  # type: ignore[attr-defined]
    if not isinstance(app, typer.Typer):
        function, app = app, typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(subject.name)(function)
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


#: kind -> hooks that must not import paddle
LIGHT: dict[str, Callable[[Subject], None]] = {
    "device": _light_device,
    "parallel": _light_parallel,
    "model": _light_model,
    "method": _light_method,
    "format": _light_format,
    "importer": _light_importer,
    "forecaster": _light_forecaster,
    "optimizer": _light_optimizer,
    "schedule": _use_schedule,
}

#: kind -> everything that can be used without hardware, network or files of the user
USE: dict[str, Callable[[Subject], None]] = {
    **LIGHT,
    "optimizer": _use_optimizer,
    "reward": _use_reward,
    "callback": _use_callback,
    "adapter": _use_adapter,
    "quantizer": _use_quantizer,
    "exporter": _use_exporter,
}
