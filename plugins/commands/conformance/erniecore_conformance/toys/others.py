"""Good plugins at toy size for the kinds that need no model of their own: device, parallel, format, reward, exporter,
server, callback, command."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from erniecore.api import ConfigError, Field, Json, Plugin, RowError, Section, UsageError, hookimpl
from erniecore.api.data import Conversation, FormatPlugin, Message
from erniecore.api.device import Cluster, Device, DevicePlugin
from erniecore.api.method import Origin, Record, RunView
from erniecore.api.model import ModelBundle
from erniecore.api.parallel import ParallelConfig, ParallelPlan, ParallelPlugin, ProcessGroup
from erniecore.api.reward import Completion, RewardConfig

if TYPE_CHECKING:
    from erniecore.api.testing import Layer


class ToyDevice(Device):
    """The host's processor under another name."""

    name = "toy"
    dtypes = frozenset({"float32"})
    deterministic = True

    def environment(self) -> Mapping[str, str]:
        """Two variables that nobody reads."""
        return {"ERNIE_TOY_A": "1", "ERNIE_TOY_B": "2"}

    def open(self) -> None:
        """Import paddle and select the CPU."""
        import paddle

        paddle.set_device("cpu")

    def describe(self) -> Mapping[str, str]:
        """One fact about the device."""
        return {"processor": "toy"}

    def peak_memory(self) -> int:
        """Peak resident memory of this process."""
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class ToyDevicePlugin(DevicePlugin):
    """Opens the device :class:`ToyDevice`."""

    name = "toy"
    summary = "the processor for the conformance kit"

    @hookimpl
    def ernie_open_device(self) -> Device:
        return ToyDevice()


class ToyParallelConfig(ParallelConfig):
    """Section of the toy strategy."""

    data: int = Field(0, ge=0, description="Data-parallel degree; 0: as many as there are processes.")


class ToyParallelPlugin(ParallelPlugin):
    """Data parallelism at its plainest."""

    name = "toy"
    summary = "data parallelism for the conformance kit"
    Config = ToyParallelConfig

    @hookimpl
    def ernie_plan_parallel(self, config: ToyParallelConfig, cluster: Cluster) -> ParallelPlan:
        degree = config.data or cluster.world_size
        if degree != cluster.world_size:
            raise ConfigError.at("parallel.data", f"{degree} ranks asked for, {cluster.world_size} processes started")
        return ParallelPlan({"data": degree}, cluster.rank, degree)

    @hookimpl
    def ernie_open_process_group(self, cluster: Cluster) -> ProcessGroup:
        from erniecore_conformance.toys.process_group import ToyProcessGroup

        return ToyProcessGroup(cluster)

    @hookimpl
    def ernie_parallelize(self, model: Layer) -> Layer:
        return model


class ToyFormatPlugin(FormatPlugin):
    """Rows with ``ask`` and ``answer``."""

    name = "toy"
    summary = "questions and answers for the conformance kit"
    examples: ClassVar[tuple[Json, ...]] = ({"ask": "How are you?", "answer": "Quite well, thanks."},)

    @hookimpl
    def ernie_match_row(self, row: Json) -> bool:
        return "ask" in row and "answer" in row

    @hookimpl
    def ernie_parse_row(self, row: Json, origin: Origin) -> Conversation:
        for key in ("ask", "answer"):
            if not isinstance(row.get(key), str) or not row[key]:
                raise RowError("must be a text", where=f"$.{key}")
        return Conversation((Message("user", row["ask"]), Message("assistant", row["answer"])), origin=origin)

    @hookimpl
    def ernie_write_record(self, record: Record) -> Json:
        if not isinstance(record, Conversation) or [m.role for m in record.messages] != ["user", "assistant"]:
            raise RowError("one question and one answer only", where="$")
        return {"ask": record.messages[0].content, "answer": record.messages[1].content}


class ToyRewardPlugin(Plugin):
    """Completions that are the reference."""

    kind = "reward"
    name = "toy"
    summary = "equality with the reference, for the conformance kit"
    Config = RewardConfig

    @hookimpl
    def ernie_compute_rewards(self, config: RewardConfig, completions: Sequence[Completion]) -> Sequence[float]:
        return [float(c.content == c.reference) + 0.5 * c.finished for c in completions]


class ToyExporterPlugin(Plugin):
    """One safetensors file under public names."""

    kind = "exporter"
    name = "toy"
    summary = "one safetensors file for the conformance kit"

    @hookimpl
    def ernie_export(self, bundle: ModelBundle, target: Path) -> Path:
        from safetensors.numpy import save_file

        state = {name: value.numpy() for name, value in bundle.model.state_dict().items()}
        arrays: dict[str, Any] = {}
        for m in bundle.adapter.maps("pt"):
            if m.store is not None:
                arrays.update(zip(m.sources, m.store(state[m.name]), strict=True))
        save_file(arrays, target / "model.safetensors")
        return target


class ToyServerConfig(Section):
    """Section of the toy server."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port; 0: any free one.")


class ToyServerPlugin(Plugin):
    """Serves nothing, but refuses well."""

    kind = "server"
    name = "toy"
    summary = "a server for the conformance kit"
    Config = ToyServerConfig

    @hookimpl
    def ernie_serve(self, config: ToyServerConfig, directory: Path) -> int:
        if not (directory / "config.json").is_file():
            raise UsageError("no model here", where=str(directory), fix="name a model directory")
        return 0


class ToyCallbackPlugin(Plugin):
    """Appends every event to ``toy.jsonl``."""

    kind = "callback"
    name = "toy"
    summary = "a log for the conformance kit"

    @hookimpl
    def ernie_event(self, run: RunView, event: Mapping[str, Any]) -> None:
        with (run.out / "toy.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(dict(event)) + "\n")

    @hookimpl
    def ernie_collect_metrics(self, run: RunView, step: int) -> Mapping[str, float]:
        return {"toy/step": float(step)}


def command(times: int = 1) -> None:
    """Says hello a number of times, for the conformance kit."""
    for _ in range(times):
        print("hello")


device = ToyDevicePlugin()
parallel = ToyParallelPlugin()
row_format = ToyFormatPlugin()
reward = ToyRewardPlugin()
exporter = ToyExporterPlugin()
server = ToyServerPlugin()
callback = ToyCallbackPlugin()
