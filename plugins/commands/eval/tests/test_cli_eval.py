"""``ernie eval``: numbers against an independent computation, groups, dropped rows, completions."""

import json

import numpy as np
import pytest

from erniecore.cli.app import main
from erniecore.errors import Exit


@pytest.fixture
def evaluate(talker, capsys):
    """Run the command on the model: (exit code, stdout, stderr)."""

    def run(*args, data=talker / "rows.jsonl"):
        code = main(["eval", "--model", str(talker / "model"), "--data", str(data), *args])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def report(evaluate):
    """The same with ``--json``, parsed."""
    return lambda *args, **options: json.loads(evaluate(*args, "--json", **options)[1])


def reference(talker):
    """task -> [(nll, tokens, bytes)] from the model's plain logits, one row at a time."""
    import paddle

    import erniecore
    from erniecore.types.records import Message

    model = erniecore.load_model(talker / "model")
    tokenizer = erniecore.load_tokenizer(talker / "model")
    found = {}
    for line in (talker / "rows.jsonl").read_text().splitlines():
        row = json.loads(line)
        user, bot = (m["content"] for m in row["messages"])
        segments = tokenizer.chat_template.segments([Message("user", user)], add_generation_prompt=True)
        prompt = [i for part in tokenizer.encode_segments(segments) for i in part]
        completion = [*tokenizer.encode(bot), tokenizer.eos_id]
        with paddle.no_grad():
            logits = (
                model(paddle.to_tensor([[*prompt, *completion[:-1]]])).numpy()[0, len(prompt) - 1 :].astype("float64")
            )
        logp = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        nll = -sum(logp[i, token] for i, token in enumerate(completion))
        found.setdefault(row["task"], []).append((nll, len(completion), len(bot.encode())))
    return found


@pytest.mark.parametrize("batch_size", ["1", "4", "64"])
def test_losses_equal_plain_logits(report, talker, batch_size):
    body = report("--batch-size", batch_size)
    expected = reference(talker)
    parts = {**body["groups"], "all": body}
    for name, rows in {**expected, "all": [r for group in expected.values() for r in group]}.items():
        nll, tokens, text_bytes = (sum(column) for column in zip(*rows, strict=True))
        got = parts[name]
        assert (got["rows"], got["tokens"], got["bytes"]) == (len(rows), tokens, text_bytes)
        assert got["loss"] == pytest.approx(nll / tokens, rel=1e-4)
        assert got["perplexity"] == pytest.approx(np.exp(nll / tokens), rel=1e-3)
        assert got["bits_per_byte"] == pytest.approx(nll / np.log(2) / text_bytes, rel=1e-4)


def test_groups_follow_the_chosen_field(report, talker, tmp_path):
    rows = [json.loads(line) for line in (talker / "rows.jsonl").read_text().splitlines()]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({**row, "level": i % 3}) + "\n" for i, row in enumerate(rows)))
    assert {g: s["rows"] for g, s in report("--group-by", "level", data=file)["groups"].items()} == {
        "0": 4,
        "1": 3,
        "2": 3,
    }
    assert set(report(data=file)["groups"]) == {"copy", "identity"}


def test_an_unknown_field_names_the_nearest(evaluate):
    code, _, err = evaluate("--group-by", "taks")
    assert code == Exit.DATA
    assert "did you mean task?" in err


def test_limit_draws_rows_by_the_seed(report):
    def tokens(*args):
        return report("--limit", "3", *args)["tokens"]

    assert report("--limit", "3")["rows"] == report("--max-samples", "3")["rows"] == 3
    assert tokens("--seed", "1") == tokens("--seed", "1")
    assert len({tokens("--seed", str(seed)) for seed in range(6)}) > 1


def test_unusable_rows_are_counted_and_shown(evaluate, report, talker, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text(
        (talker / "rows.jsonl").read_text() + '{"messages": [{"role": "user", "content": "alone"}]}\nnot json\n'
    )
    body = report(data=file)
    assert (body["rows"], body["dropped"], [e["line"] for e in body["errors"]]) == (10, 2, [11, 12])
    assert f"2 of 12 rows dropped; the first: {file}:11" in evaluate(data=file)[2]


def test_nothing_usable_is_an_error(evaluate, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "alone"}]}\n')
    code, _, err = evaluate("--format", "messages", data=file)
    assert code == Exit.DATA
    assert f"the first: {file}:1" in err


def test_completions_are_compared_counted_and_kept(report, tmp_path):
    file = tmp_path / "completions.jsonl"
    body = report("--generate", "--max-new-tokens", "6", "--completions", str(file))
    match = body["exact_match"]
    completions = [json.loads(line) for line in file.read_text().splitlines()]
    assert match["n"] == len(completions) == 10
    assert match["correct"] == sum(a["correct"] for a in completions)
    assert match["low"] <= match["score"] <= match["high"]
    assert all(a["correct"] == (a["completion"].split() == a["reference"].split()) for a in completions)


def test_right_completions_count_as_right(report, talker, tmp_path):
    """The model's own greedy completions as references: all must match, in batches too."""
    completions = tmp_path / "completions.jsonl"
    report("--generate", "--max-new-tokens", "6", "--completions", str(completions))
    said = [json.loads(line) for line in completions.read_text().splitlines()]
    usable = [a for a in said if a["completion"].strip() and "\N{REPLACEMENT CHARACTER}" not in a["completion"]]
    own = tmp_path / "own.jsonl"
    with own.open("w") as file:
        for a in usable:
            messages = [{"role": "user", "content": a["question"]}, {"role": "assistant", "content": a["completion"]}]
            file.write(json.dumps({"messages": messages, "task": a["group"]}) + "\n")
    for size in ("1", "4"):
        match = report("--generate", "--max-new-tokens", "6", "--batch-size", size, data=own)["exact_match"]
        assert match["n"] == match["correct"] == len(usable) > 0


def test_the_table_has_a_line_per_group_and_one_for_all(evaluate):
    lines = evaluate("--generate", "--max-new-tokens", "2")[1].splitlines()
    assert [line.split()[0] for line in lines] == ["group", "copy", "identity", "all"]
    assert "/10 = " in lines[-1]


def test_the_report_says_what_the_score_depends_on(report, talker):
    body = report()
    assert (body["model"], body["method"], body["seed"]) == (str(talker / "model"), "sft", 0)
    assert len(body["template_sha256"]) == 64


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--completions", "x"], Exit.USAGE, "add --generate"),
        (["--method", "stf"], Exit.USAGE, "sft"),
        (["--format", "mesages"], Exit.USAGE, "messages"),
        (["--batch-size", "0"], Exit.USAGE, "--batch-size"),
        (["--generate", "--max-new-tokens", "96"], Exit.USAGE, "ask for at most"),
        (["--method", "kto"], Exit.USAGE, "name its directory with --reference"),
        (["--reference", "x"], Exit.USAGE, "leave it out"),
        (["--generate", "--completions", "missing/x.jsonl"], Exit.USAGE, "an existing directory"),
    ],
)
def test_refusals_say_what_to_do(evaluate, args, code, message):
    got, out, err = evaluate(*args)
    assert (got, out) == (code, "")
    assert message in err


def test_a_missing_file_is_an_error_of_the_data(evaluate, tmp_path):
    code, _, err = evaluate(data=tmp_path / "rows.jsonl")
    assert code == Exit.DATA
    assert "rows.jsonl" in err


@pytest.fixture
def pairs(talker, tmp_path):
    """Preferences over the rows: the row's own completion against a longer or shorter one."""
    rows = [json.loads(line) for line in (talker / "rows.jsonl").read_text().splitlines()]
    file = tmp_path / "pairs.jsonl"
    lines = []
    for number, row in enumerate(rows):
        user, bot = row["messages"]
        other = {"role": "assistant", "content": "no" if number % 2 else "7" * 12}
        lines.append(json.dumps({"messages": [user], "chosen": bot, "rejected": other, "task": row["task"]}) + "\n")
    file.write_text("".join(lines))
    return file


def test_preference_accuracy_is_the_share_of_likelier_preferred_completions(report, talker, pairs, tmp_path):
    nlls = []
    for side in ("chosen", "rejected"):
        single = tmp_path / "single"
        single.mkdir(exist_ok=True)
        rows = [json.loads(line) for line in pairs.read_text().splitlines()]
        own = single / "rows.jsonl"
        own.write_text("".join(json.dumps({"messages": [*r["messages"], r[side]], "task": "x"}) + "\n" for r in rows))
        (single / "model").exists() or (single / "model").symlink_to(talker / "model")
        nlls.append([nll for nll, _, _ in reference(single)["x"]])
    likelier = [a < b for a, b in zip(*nlls, strict=True)]
    assert 0 < sum(likelier) < len(likelier)
    body = report("--method", "dpo", data=pairs)
    assert body["dropped"] == 0
    assert body["metrics"]["rewards/accuracies"] == pytest.approx(sum(likelier) / len(likelier))
    assert body["metrics"]["logps/chosen"] == pytest.approx(-np.mean(nlls[0]), rel=1e-4)
    assert "perplexity" not in body
    weighted = sum(g["metrics"]["rewards/accuracies"] * g["rows"] for g in body["groups"].values())
    assert weighted / body["rows"] == pytest.approx(body["metrics"]["rewards/accuracies"])


def test_against_itself_a_model_has_no_rewards(report, evaluate, talker, pairs):
    args = ("--method", "dpo", "--reference", str(talker / "model"))
    assert report(*args, data=pairs)["metrics"]["rewards/margins"] == 0
    lines = [line.split() for line in evaluate(*args, data=pairs)[1].splitlines()]
    assert ["metric", "copy", "identity", "all"] in lines
    assert ["loss", "0.6931", "0.6931", "0.6931"] in lines


def test_the_results_are_kept_with_what_they_depend_on(report, talker, tmp_path):
    out, samples = tmp_path / "new/result.json", tmp_path / "new/samples.jsonl"
    body = report("--out", str(out), "--samples", str(samples), "--limit", "4")
    kept = json.loads(out.read_text())
    assert {name: kept[name] for name in body} == body
    assert kept["settings"]["limit"] == 4
    assert "max_new_tokens" not in kept["settings"]  # nothing was generated
    assert set(kept["versions"]) == {"erniecore", "erniecore-eval", "numpy"}
    moved = tmp_path / "moved.jsonl"
    moved.write_text((talker / "rows.jsonl").read_text())
    report("--out", str(tmp_path / "again.json"), "--limit", "4", data=moved)
    again = json.loads((tmp_path / "again.json").read_text())
    assert [again[key] == kept[key] for key in ("model_sha256", "rows_sha256")] == [True, True]
    report("--out", str(tmp_path / "other.json"), "--limit", "3")
    assert json.loads((tmp_path / "other.json").read_text())["rows_sha256"] != kept["rows_sha256"]


def test_a_comparison_is_kept_with_the_hashes_of_both(talker, tmp_path, capsys):
    data, samples, out = str(talker / "rows.jsonl"), str(tmp_path / "a.jsonl"), tmp_path / "compared.json"
    assert main(["eval", "--model", str(talker / "model"), "--data", data, "--samples", samples]) == 0
    capsys.readouterr()
    assert main(["eval", "--compare", samples, samples, "--out", str(out), "--json"]) == 0
    kept = json.loads(out.read_text())
    assert kept["loss"] == json.loads(capsys.readouterr().out)["loss"]
    assert kept["hashes"]["a"] == kept["hashes"]["b"]
    assert len(kept["hashes"]["a"]["samples_sha256"]) == 64
