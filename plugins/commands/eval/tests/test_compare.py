"""``ernie eval --compare``: statistics against hand-made and brute-force numbers, models, saved samples, refusals."""

import itertools
import json
import math
import shutil

import numpy as np
import pytest
from erniecore_eval.compared import ScoredRow, bootstrap, compare, mcnemar, paired

from erniecore.cli.app import main
from erniecore.errors import DataError, Exit


def test_mcnemar_is_the_two_sided_binomial_test():
    for b, c in itertools.product(range(7), repeat=2):
        n = b + c
        probabilities = [math.comb(n, k) / 2**n for k in range(n + 1)]
        expected = sum(p for p in probabilities if p <= probabilities[b] * (1 + 1e-12))
        assert mcnemar(b, c) == pytest.approx(min(1.0, expected))
    assert mcnemar(0, 5) == 0.0625


def test_the_bootstrap_covers_all_resamples_of_three_rows():
    """27 equally likely resamples: the interval's ends are quantiles of these differences, p the tails' fractions."""
    values = np.array([[1.0, 2.0], [4.0, 3.0], [2.0, 7.0]])
    weights = np.array([[1.0, 1.0], [2.0, 2.0], [1.0, 1.0]])
    found = bootstrap(values, weights, resamples=20000, seed=1)
    exact = []
    for draw in itertools.product(range(3), repeat=3):
        means = values[list(draw)].sum(axis=0) / weights[list(draw)].sum(axis=0)
        exact.append(means[1] - means[0])
    assert (found["a"], found["b"]) == (7 / 4, 12 / 4)
    assert found["difference"] == found["b"] - found["a"]
    assert (found["low"], found["high"]) == pytest.approx(
        tuple(np.percentile(exact, [2.5, 97.5], method="inverted_cdf"))
    )
    assert found["p"] == pytest.approx(2 * np.mean(np.array(exact) <= 0), abs=0.01)


def test_equal_rows_differ_by_nothing_and_other_tokens_are_compared_by_bytes():
    rows = [ScoredRow(str(i), "x", loss=float(i + 1), weight=2.0, text_bytes=4, correct=i % 2 == 0) for i in range(6)]
    same = compare([(row, row) for row in rows])
    assert (same["loss"]["difference"], same["loss"]["low"], same["loss"]["p"]) == (0, 0, 1)
    assert (same["accuracy"]["a"], same["accuracy"]["mcnemar_p"]) == (0.5, 1)
    other = [ScoredRow(row.id, "x", loss=row.loss, weight=3.0, text_bytes=4) for row in rows]
    assert compare(list(zip(rows, other, strict=True)))["bits_per_byte"]["a"] == pytest.approx(21 / 24 / math.log(2))


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ([ScoredRow("0", "x")], "not evaluated on the same rows"),
        ([ScoredRow("0", "x"), ScoredRow("1", "z")], "other contents"),
        ([ScoredRow("0", "x"), ScoredRow("0", "x")], "occurs twice"),
    ],
)
def test_other_rows_are_refused(other, found):
    with pytest.raises(DataError, match=found):
        paired([ScoredRow("0", "x"), ScoredRow("1", "y")], other)


@pytest.fixture
def worse(talker, tmp_path):
    """The model with its last norm scaled: flatter or sharper predictions."""
    from safetensors.numpy import load_file, save_file

    model = tmp_path / "worse"
    shutil.copytree(talker / "model", model)
    [weights] = model.glob("*.safetensors")
    arrays = load_file(weights)
    [norm] = [name for name in arrays if name.endswith("model.norm.weight")]
    save_file({**arrays, norm: arrays[norm] * 3}, weights, metadata={"format": "pt"})
    (model / "erniecore_manifest.json").unlink(missing_ok=True)
    return model


def test_models_and_their_samples_compare_alike(talker, worse, tmp_path, capsys):
    def ernie(*args):
        code = main(["eval", *map(str, args)])
        return code, *capsys.readouterr()

    data = ("--data", talker / "rows.jsonl", "--generate", "--max-new-tokens", "2")
    losses = {}
    for name, model in (("a", talker / "model"), ("b", worse)):
        code, out, err = ernie("--model", model, *data, "--samples", tmp_path / name, "--json")
        assert code == Exit.OK, err
        losses[name] = json.loads(out)
        plain = json.loads(ernie("--model", model, *data, "--json")[1])
        assert plain["loss"] == pytest.approx(losses[name]["loss"], rel=1e-6)
    models = json.loads(ernie("--compare", talker / "model", worse, *data, "--json")[1])
    files = json.loads(ernie("--compare", tmp_path / "a", tmp_path / "b", "--json")[1])
    for key in ("rows", "loss", "accuracy", "groups"):
        assert models[key] == files[key]
    assert set(files["groups"]) == {"copy", "identity"}
    for name in "ab":
        assert files["loss"][name] == pytest.approx(losses[name]["loss"], rel=1e-6)
        assert files["accuracy"][name] == losses[name]["exact_match"]["score"]
    assert files["loss"]["low"] < files["loss"]["difference"] < files["loss"]["high"]
    code, out, _ = ernie("--compare", tmp_path / "a", tmp_path / "b")
    assert code == Exit.OK
    assert "identity" in out
    assert f"{files['loss']['difference']:+.4f}" in out


@pytest.mark.parametrize(
    ("args", "code", "found"),
    [
        (("--compare", "{model}", "{model}"), Exit.USAGE, "--data"),
        (("--compare", "{rows}", "{rows}"), Exit.DATA, "no sample"),
        (("--compare", "{rows}", "{rows}", "--model", "{model}"), Exit.USAGE, "leave out"),
        (("--model", "{model}"), Exit.USAGE, "--data"),
        (("--data", "{rows}"), Exit.USAGE, "--model"),
    ],
)
def test_mistakes(talker, capsys, args, code, found):
    places = {"model": talker / "model", "rows": talker / "rows.jsonl"}
    assert main(["eval", *(arg.format(**places) for arg in args)]) == code
    assert found in capsys.readouterr()[1]
