"""The program that measures public sizes, on a tiny model: real commands, and numbers that follow from the files."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))
from benchmarks import real_models, real_sizes, watched


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("real-sizes")


@pytest.fixture(scope="module")
def rows(home):
    words = [
        "--size",
        "tiny",
        "--keep",
        str(home),
        "--tokens",
        "8",
        "--steps",
        "2",
        "--json",
        str(home / "found.jsonl"),
    ]
    assert real_sizes.main(["init", "quantize", "decode", "prefill", "lora", "extract", "--kills", "1", *words]) == 0
    found = [json.loads(line) for line in (home / "found.jsonl").read_text().splitlines()]
    return {row["row"] if row["row"] != "extract" else row["what"].split()[0]: row for row in found}


def test_every_row_is_measured(rows, home):
    assert set(rows) == {"init", "quantize", "decode", "prefill", "lora", "experts", "extract", "plan", "first"}
    assert all(row["seconds"] > 0 and row["peak_mib"] > 50 for row in rows.values())
    assert rows["decode"]["tokens_per_s"] > 0
    assert rows["prefill"]["tokens_per_s"] > 0
    assert rows["lora"]["planned_mib"] > 0
    assert rows["decode"]["mb_per_token"] == pytest.approx(real_models.token_bytes(home / "wint4-8") / 1e6, abs=0.06)


def test_a_token_reads_the_experts_that_it_selects_and_the_head(rows, home):
    source, sizes = home / "source", dict(real_models.stored(home / "source"))
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    config = json.loads((source / "config.json").read_text())
    everything = sum(sizes.values())
    assert config["tie_word_embeddings"]
    assert experts > 0
    expected = everything - experts * (1 - config["moe_k"] / config["moe_num_experts"])
    assert real_models.token_bytes(source) == pytest.approx(expected)
    assert everything <= real_models.weight_bytes(source)


def test_the_smaller_model_has_the_size_that_was_asked_for_also_behind_a_kill(rows, home):
    config = json.loads((home / "extracted" / "config.json").read_text())
    assert (config["num_hidden_layers"], config["moe_num_experts"], config["moe_k"]) == (3, 4, 1)
    row = rows["extract"]
    assert row["bytes_equal"]
    assert real_models.weight_bytes(home / "extracted") < real_models.weight_bytes(home / "source")
    written = sum(size for _, size in real_models.stored(home / "extracted"))
    assert written == pytest.approx(2 * row["parameters"], rel=0.01)  # bfloat16, and routers in float32
    assert rows["first"]["tokens"] == 1
    assert rows["plan"]["planned_mib"] > 0


def test_prompts_have_the_tokens_that_were_asked_for(rows, home):
    from erniecore_text.tokenizer import SentencePieceTokenizer

    tokenizer = SentencePieceTokenizer.from_directory(home / "tok")
    for count in (1, 24, 300):
        assert len(tokenizer.encode(real_models.prompt_of(home / "tok", count))) == count


def test_the_memory_of_a_process_and_its_child_counts(tmp_path):
    """Both hold 64 MiB at once."""
    hold = "x = bytearray(b'a' * (64 << 20)); "
    child = f"import subprocess, sys; {hold}subprocess.run([sys.executable, '-c', {hold + 'import time; time.sleep(0.5)'!r}])"
    done = watched.watch([sys.executable, "-c", child], tmp_path)
    assert done.code == 0
    assert done.anonymous > 128 << 20
    assert len(done.ranks) == 2


def test_a_command_is_killed_with_what_it_started(tmp_path):
    child = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    done = watched.watch([sys.executable, "-c", child], tmp_path, kill_after=1.0)
    assert done.code == -9
    state = Path(f"/proc/{int(done.out)}/stat")
    end = time.monotonic() + 30
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end
        os.sched_yield()
    with pytest.raises(RuntimeError, match="exit code -9"):
        done.last_json()


def test_files_are_compared_byte_for_byte(tmp_path):
    for name, last in (("a", 1), ("b", 1), ("c", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(bytes(100) + bytes([last]))
    assert real_sizes.same_weights(tmp_path / "a", tmp_path / "b")
    assert not real_sizes.same_weights(tmp_path / "a", tmp_path / "c")
    assert not real_sizes.same_weights(tmp_path / "a", tmp_path)


def test_commands_keep_byte_code_whatever_the_shell_says(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    done = watched.watch([sys.executable, "-c", "import sys; print(sys.dont_write_bytecode)"], tmp_path)
    assert done.out.split() == ["False"]
