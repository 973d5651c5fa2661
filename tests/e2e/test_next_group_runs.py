"""Runs of next-group prediction: one that continues is the straight one bit for bit, two processes learn as one does."""

import numpy as np
import pytest
from erniecore_checkpoint.reader import load_checkpoint

pytestmark = pytest.mark.slow

SIZE = (
    "hidden_size=32,intermediate_size=48,num_attention_heads=2,num_key_value_heads=1,moe_intermediate_size=16,"
    "moe_num_experts=4"
)


@pytest.fixture(scope="module")
def home(tmp_path_factory, run_ernie):
    """Directory with ``made``, ``tok`` and the model ``base``."""
    home = tmp_path_factory.mktemp("next-group")
    for words in (
        ("parts", "examples", "--out", "made", "--motifs", 40),
        ("tokenizer", "train", "made/train.jsonl", "--vocab-size", 380, "--out", "tok"),
        ("model", "init", "--model", "ernie5", "--size", SIZE, "--tokenizer", "tok", "--out", "base"),
        (
            "model",
            "init",
            "--model",
            "ernie5",
            "--size",
            f"{SIZE},image_read_layers=1",
            "--tokenizer",
            "tok",
            "--out",
            "seeing",
        ),
    ):
        done = run_ernie(*words, cwd=home)
        assert done.code == 0, done.err
    return home


def trained(run_ernie, home, out, *words, code=0, base="base"):
    settings = {"data.max_seq_len": 96, "train.batch_size": 2, "train.max_steps": 4, "train.learning_rate": 3e-3}
    chosen = [f"{key}={value}" for key, value in settings.items()]
    plugins = ("--method", "next-group", "--model", base, "--data", "made/train.jsonl", "--out", out)
    done = run_ernie("run", *plugins, *chosen, *words, cwd=home)
    assert done.code == code, done.err
    return load_checkpoint(home / out / "ckpt" / "step-00000004").tensors["model"] if not code else {}


@pytest.fixture(scope="module")
def straight(home, run_ernie):
    return trained(run_ernie, home, "one", "train.accumulation=4")


def test_a_run_that_continues_learns_the_same(home, run_ernie, straight):
    trained(run_ernie, home, "cut", "train.accumulation=4", "run.until=2", code=75)
    continued = trained(run_ernie, home, "cut", "train.accumulation=4")
    assert all(np.array_equal(continued[name], value) for name, value in straight.items())


def test_two_processes_learn_as_one_does(home, run_ernie, straight):
    two = trained(run_ernie, home, "two", "train.accumulation=2", "parallel.name=hybrid", "parallel.data=2")
    assert max(float(np.abs(two[name] - value).max()) for name, value in straight.items()) < 1e-4  # of steps of 3e-3


def test_a_model_with_two_paths_of_reading_learns_continues_and_describes(home, run_ernie):
    """Two processes, one of which may have no image to read in a step."""
    straight = trained(run_ernie, home, "read", "train.accumulation=4", base="seeing")
    trained(run_ernie, home, "read-cut", "train.accumulation=4", "run.until=2", code=75, base="seeing")
    continued = trained(run_ernie, home, "read-cut", "train.accumulation=4", base="seeing")
    assert all(np.array_equal(continued[name], value) for name, value in straight.items())
    two = trained(
        run_ernie, home, "read-two", "train.accumulation=2", "parallel.name=hybrid", "parallel.data=2", base="seeing"
    )
    assert max(float(np.abs(two[name] - value).max()) for name, value in straight.items()) < 1e-4
    image = next((home / "made" / "images").glob("*.png"))
    done = run_ernie("parts", "describe", "--model", "read", image, cwd=home)
    assert done.code == 0, done.err


def test_rows_are_not_shared_by_ranks(home, run_ernie):
    words = ("--method", "next-group", "--model", "base", "--data", "made/train.jsonl", "--out", "never")
    done = run_ernie("run", *words, "parallel.name=hybrid", "parallel.context=2", cwd=home)
    assert (done.code, "whole rows" in done.err) == (2, True)
