"""Checks for devices that need no particular hardware: where the hardware is absent, the refusal is checked."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from erniecore.api import DeviceUnavailable
from erniecore.api.device import Cluster, Device
from erniecore_conformance.check import Check
from erniecore_conformance.expect import NotApplicable, ensure, ensure_bits, ensure_close, ensure_equal
from erniecore_conformance.subjects import Subject

#: Relative error allowed for a matrix product of 64 terms, by dtype.
PRODUCT_TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}


def _device(subject: Subject, cluster: Cluster | None = None) -> Device:
    device: Device = subject.call("ernie_open_device", config=subject.config(), cluster=cluster or Cluster())
    return device


def _opened(subject: Subject) -> Device:
    device = _device(subject)
    try:
        device.open()
    except DeviceUnavailable as error:
        raise NotApplicable(f"the device is not here: {error.message}") from error
    return device


def check_device_environment_is_pure(subject: Subject) -> None:
    """``environment()`` gives the same answer twice and leaves ``os.environ`` alone."""
    before, device = dict(os.environ), _device(subject)
    first, second = dict(device.environment()), dict(device.environment())
    ensure_equal(second, first, "environment() called again")
    ensure_equal(dict(_device(subject).environment()), first, "environment() of a second device")
    ensure(dict(os.environ) == before, "environment() changed os.environ")


def check_device_environment_is_sorted(subject: Subject) -> None:
    """``environment()`` maps strings to strings, in the order of their names."""
    found = dict(_device(subject).environment())
    ensure(all(isinstance(x, str) for pair in found.items() for x in pair), f"not all strings: {found}")
    ensure_equal(list(found), sorted(found), "order of names")


def check_device_environment_is_portable(subject: Subject) -> None:
    """No value of ``environment()`` holds this host's name, home, working directory or process id."""
    local = {"host name": socket.gethostname(), "home": str(Path.home()), "working directory": str(Path.cwd())}
    local = {what: text for what, text in local.items() if len(text) > 3}
    for name, value in _device(subject).environment().items():
        for what, text in local.items():
            ensure(text not in value, f"{name}={value!r} holds the {what}")
        ensure(value != str(os.getpid()), f"{name}={value!r} is the process id")


def check_device_name_is_its_plugins(subject: Subject) -> None:
    """``Device.name`` is the plugin's name: logs and checkpoints say what the user chose."""
    ensure_equal(_device(subject).name, subject.plugin.name, "Device.name")


def check_device_refusal_has_remedy(subject: Subject) -> None:
    """``open()`` works, or raises ``DeviceUnavailable`` that says what to install or do."""
    try:
        _device(subject).open()
    except DeviceUnavailable as error:
        ensure(bool(error.fix or error.next), f"DeviceUnavailable without a remedy: {error}")


def check_device_opens_twice(subject: Subject) -> None:
    """Opening an open device again is harmless."""
    device = _opened(subject)
    device.open()


def check_device_describes_itself(subject: Subject) -> None:
    """``describe()`` gives at least one fact, as strings."""
    facts = dict(_opened(subject).describe())
    ensure(bool(facts), "describe() is empty")
    ensure(all(isinstance(x, str) and x for pair in facts.items() for x in pair), f"not all non-empty strings: {facts}")


def check_device_memory_grows(subject: Subject) -> None:
    """``peak_memory()`` is a non-negative int that covers a new 64 MiB tensor and never falls."""
    import paddle

    device = _opened(subject)
    before = device.peak_memory()
    ensure(isinstance(before, int) and before >= 0, f"peak_memory() is {before!r}")
    block = paddle.ones([16 * 2**20], dtype="float32")
    with_block = device.peak_memory()
    del block
    ensure(with_block >= 64 * 2**20, f"peak_memory() is {with_block} bytes while a tensor of 64 MiB lives")
    ensure(device.peak_memory() >= with_block >= before, "peak_memory() fell")


def check_device_dtypes_compute(subject: Subject) -> None:
    """float32 is among ``dtypes``, and matrix products run in each of them within rounding."""
    import numpy as np
    import paddle

    device = _opened(subject)
    ensure("float32" in device.dtypes, f"dtypes are {sorted(device.dtypes)}; float32 must be one of them")
    a = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    for dtype in sorted(device.dtypes):
        x = paddle.to_tensor(a).astype(dtype)
        product = paddle.matmul(x, x, transpose_y=True).astype("float32").numpy()
        scale = float(np.abs(a @ a.T).max())
        ensure_close(product / scale, a @ a.T / scale, PRODUCT_TOLERANCE.get(dtype, 0.1), f"matrix product in {dtype}")


def check_device_randomness_repeats(subject: Subject) -> None:
    """The same seed gives the same random numbers."""
    import paddle

    device = _opened(subject)
    draws = []
    for _ in range(2):
        paddle.seed(1234)
        draws.append(paddle.randn([64]).numpy())
    ensure_bits(draws[1], draws[0], f"numbers drawn on {device.name} after paddle.seed(1234)")


def check_device_says_whether_it_repeats(subject: Subject) -> None:
    """``deterministic`` is true or false: ``run.deterministic`` relies on it."""
    says = getattr(_device(subject), "deterministic", None)
    ensure(isinstance(says, bool), f"Device.deterministic is {says!r}; expected True or False")


def check_device_repeats_bit_for_bit(subject: Subject) -> None:
    """A device that calls itself ``deterministic`` gives the same bits for a gradient that many positions add up to."""
    import numpy as np
    import paddle

    device = _opened(subject)
    if getattr(device, "deterministic", None) is not True:
        raise NotApplicable("the device does not say that its results repeat")
    random = np.random.default_rng(0)
    ids = paddle.to_tensor(random.integers(0, 8, 4096))
    values, factors = random.standard_normal((8, 16)), random.standard_normal((4096, 16))
    found = []
    for _ in range(2):
        table = paddle.to_tensor(values.astype(np.float32), stop_gradient=False)
        rows = paddle.nn.functional.embedding(ids, table)
        (rows * paddle.to_tensor(factors.astype(np.float32))).sum().backward()
        found.append(table.grad.numpy())
    ensure_bits(found[1], found[0], "the gradient of an embedding, computed again")


CHECKS = (
    Check(check_device_environment_is_pure),
    Check(check_device_environment_is_sorted),
    Check(check_device_environment_is_portable),
    Check(check_device_name_is_its_plugins),
    Check(check_device_refusal_has_remedy),
    Check(check_device_opens_twice),
    Check(check_device_describes_itself),
    Check(check_device_memory_grows),
    Check(check_device_dtypes_compute),
    Check(check_device_randomness_repeats),
    Check(check_device_says_whether_it_repeats),
    Check(check_device_repeats_bit_for_bit),
)
