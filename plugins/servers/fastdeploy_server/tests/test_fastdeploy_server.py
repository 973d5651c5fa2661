"""``ernie serve --backend fastdeploy`` with a stand-in for FastDeploy: real processes, ports, signals and HTTP."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from erniecore_export.exporting import export_directory
from erniecore_fastdeploy_server.command_line import command_line, parsers_of
from erniecore_fastdeploy_server.config import FastDeployConfig
from erniecore_model_init.new_model import init_model
from erniecore_text.training import train

from erniecore.api import CheckpointError, EnvironmentFault, UsageError

FAKE = Path(__file__).with_name("fake_fastdeploy.py")
COMMAND = shlex.join([sys.executable, str(FAKE)])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A directory that keeps FastDeploy's rules."""
    home = tmp_path_factory.mktemp("served")
    train(["the quick brown fox jumps over the lazy dog " * 20], 320).save(home)
    made = init_model("ernie45", "hidden_size=64,intermediate_size=128,num_hidden_layers=2", home, home / "m").path
    export_directory(made, home / "served", "fastdeploy")
    return home / "served"


def free_ports(count):
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in taken]
    for server in taken:
        server.close()
    return ports


def settings(**more):
    names = ("port", "metrics_port", "queue_port", "cache_port")
    return FastDeployConfig(command=COMMAND, **dict(zip(names, free_ports(4), strict=True)) | more)


class Server:
    """``ernie serve`` in a process; what it says is read line by line."""

    def __init__(self, model, tmp_path, how="", words=(), **variables):
        self.worker, self.words = tmp_path / "worker", tmp_path / "words.json"
        chosen = settings()
        self.port = chosen.port
        given = [
            f"{name}={getattr(chosen, name)}"
            for name in ("command", "port", "metrics_port", "queue_port", "cache_port")
        ]
        environment = {
            **os.environ,
            "FAKE": how,
            "FAKE_WORKER": str(self.worker),
            "FAKE_WORDS": str(self.words),
            **variables,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "erniecore", "serve", "--backend", "fastdeploy", "--model", model, *given, *words],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ready(self):
        return self.process.stdout.readline()

    def end(self, number=None):
        """(exit code, standard error stream) after a signal."""
        if number is not None:
            self.process.send_signal(number)
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said

    def worker_is_gone(self):
        pid = int(self.worker.read_text())
        for _ in range(100):
            try:
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except FileNotFoundError:
                return True
            if state == "Z":
                return True
            time.sleep(0.1)
        return False


def test_a_model_is_served_until_a_signal_and_all_processes_end(model, tmp_path):
    server = Server(model, tmp_path, "slow", ["name=tiny", "rows=4"])
    assert server.ready() == f"fake at http://127.0.0.1:{server.port}/v1; stop with Ctrl-C\n"
    words = json.loads(server.words.read_text())
    assert words[words.index("--model") + 1] == str(model)
    assert words[words.index("--served-model-name") + 1] == "tiny"
    assert words[words.index("--load-choices") + 1] == "default_v1"
    code, said = server.end(signal.SIGTERM)
    assert (code, "loading the model" in said) == (0, True)
    assert " shipped rows in training, FastDeploy, " in said
    assert server.worker_is_gone()


@pytest.mark.parametrize(
    ("how", "words", "expected"),
    [
        ("crash", [], "out of memory"),
        ("dies", [], "FastDeploy ended by itself"),
        ("hangs", ["hang_seconds=1"], "the server hangs"),
        ("refuses", [], "no memory"),
        ("odd", [], "ERN-K031"),
    ],
)
def test_what_goes_wrong_is_said_and_leaves_nothing_behind(model, tmp_path, how, words, expected):
    server = Server(model, tmp_path, how, words)
    code, said = server.end()
    assert code == (5 if how == "odd" else 3)
    assert expected in said
    assert how == "crash" or server.worker_is_gone()


@pytest.mark.parametrize(
    ("how", "words", "said"),
    [("odd", ["prompt_differences=warn"], "warning: ERN-K031"), ("silent", [], "an answer with prompt_token_ids")],
)
def test_other_prompts_are_served_by_name_and_untold_ones_are_a_note(model, tmp_path, how, words, said):
    server = Server(model, tmp_path, how, words)
    assert "fake at" in server.ready()
    assert said in server.end(signal.SIGTERM)[1]


def test_one_that_is_deaf_to_a_signal_is_killed(model, tmp_path):
    server = Server(model, tmp_path, "deaf", ["stop_seconds=0.5"])
    assert "fake at" in server.ready()
    code, said = server.end(signal.SIGINT)
    assert (code, "is killed" in said) == (0, True)
    assert server.worker_is_gone()


def test_the_server_ends_with_its_launcher(model, tmp_path):
    server = Server(model, tmp_path)
    assert "fake at" in server.ready()
    server.end(signal.SIGKILL)
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", server.port)):
                break
        time.sleep(0.1)
    else:
        pytest.fail("it still listens")
    os.kill(int(server.worker.read_text()), signal.SIGKILL)


def test_a_key_is_handed_on_in_the_environment_and_a_busy_server_is_a_good_one(model, tmp_path):
    key = "0123456789abcdef0123"
    server = Server(model, tmp_path, "busy", ["host=0.0.0.0"], ERNIE_API_KEY=key)
    assert "fake at" in server.ready()
    assert key not in server.words.read_text()
    assert server.end(signal.SIGTERM)[0] == 0


def serve(config, directory):
    from erniecore_fastdeploy_server.serving import serve

    return serve(config, directory)


def test_what_is_wrong_is_found_before_anything_starts(model, tmp_path):
    with pytest.raises(UsageError, match="anybody who reaches"):
        serve(settings(host="0.0.0.0"), model)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(EnvironmentFault, match="cannot listen"):
        serve(settings(cache_port=taken.getsockname()[1]), model)
    one = settings()
    with pytest.raises(UsageError, match="are the same"):
        serve(one.model_copy(update={"queue_port": one.port}), model)
    with pytest.raises(EnvironmentFault, match="not installed there"):
        serve(settings().model_copy(update={"command": "/no/such/python -m fastdeploy"}), model)
    absent = f"{sys.executable} -m fastdeploy.entrypoints.openai.api_server"
    with pytest.raises(EnvironmentFault, match="not installed there"):
        serve(settings().model_copy(update={"command": absent}), model)
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in model.iterdir():
        (broken / path.name).symlink_to(path)
    (broken / "config.json").unlink()
    config = json.loads((model / "config.json").read_text())
    (broken / "config.json").write_text(
        json.dumps({k: v for k, v in config.items() if k not in ("torch_dtype", "dtype")})
    )
    with pytest.raises(CheckpointError, match="FastDeploy does not read this directory"):
        serve(settings(dry_run=True), broken)


def test_dry_run_prints_the_command(model, capsys):
    assert serve(settings(dry_run=True, options="block-size=64,enable-logprob"), model) == 0
    assert capsys.readouterr().out.strip().endswith("--block-size 64 --enable-logprob")


@pytest.mark.parametrize(
    ("config", "template", "expected"),
    [
        ({"model_type": "ernie4_5"}, "{{ messages }}", ("", "")),
        ({"model_type": "ernie4_5_moe"}, "<think> <tool_call>", ("ernie-x1", "ernie-x1")),
        ({"model_type": "ernie4_5_moe_vl"}, "enable_thinking <think>", ("ernie-45-vl", "")),
        ({"model_type": "paddleocr_vl", "vision_config": {}}, "{{ messages }}", ("", "")),
        ({"model_type": "ernie4_5_moe_vl"}, "thinking_mode <think>", ("ernie-45-vl-thinking", "ernie-45-vl-thinking")),
    ],
)
def test_parsers_follow_the_checkpoint(config, template, expected):
    assert parsers_of(config, template) == expected


def test_options_that_are_settings_are_refused_and_drafters_need_their_layers(tmp_path):
    config = {"torch_dtype": "bfloat16", "max_position_embeddings": 4096}
    with pytest.raises(UsageError, match="is a setting"):
        command_line(FastDeployConfig(options="max-model-len=5"), tmp_path, config, "")
    with pytest.raises(UsageError, match="no layers for multi-token prediction"):
        command_line(FastDeployConfig(speculative="mtp"), tmp_path, config, "")
    words = command_line(FastDeployConfig(speculative="mtp"), tmp_path, {**config, "num_nextn_predict_layers": 1}, "")
    assert json.loads(words[words.index("--speculative-config") + 1])["method"] == "mtp"
    assert words[words.index("--max-model-len") + 1] == "4096"


def test_sizes_of_images_and_frames_are_those_of_the_model(tmp_path):
    """The server has its own, which its options replace, and takes whole numbers alone."""
    files = {
        "preprocessor_config.json": {"size": {"shortest_edge": 3136, "longest_edge": 78400}},
        "video_preprocessor_config.json": {
            "size": {"shortest_edge": 784, "longest_edge": 7840},
            "fps": 0.5,
            "max_frames": 9,
        },
    }
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    config = {"torch_dtype": "bfloat16", "model_type": "ernie4_5_moe_vl"}
    words = command_line(FastDeployConfig(), tmp_path, config, "")
    assert json.loads(words[words.index("--mm-processor-kwargs") + 1]) == {
        "image_min_pixels": 3136,
        "image_max_pixels": 78400,
        "video_min_pixels": 784,
        "video_max_pixels": 7840,
        "video_max_frames": 9,
    }
    own = command_line(FastDeployConfig(options="mm-processor-kwargs={}"), tmp_path, config, "")
    assert own.count("--mm-processor-kwargs") == 1
    assert own[-1] == "{}"
    for other in ({"model_type": "paddleocr_vl"}, {"model_type": "ernie4_5"}):
        assert "--mm-processor-kwargs" not in command_line(FastDeployConfig(), tmp_path, {**config, **other}, "")
