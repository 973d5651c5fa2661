"""One row, one step, one file: what commands print agrees with the number."""

import json
import re

#: ``1 rows``, but neither ``0.1 s`` nor ``21 rows``
DISAGREES = re.compile(r"(?<![\d.,:/-])1 (?:[a-z]+ )?[a-z]{2,}s\b(?<!ss)(?<! as)(?<! is)(?<! has)")


def test_nouns_agree_with_one(runner, ernie):
    (runner.directory / "row.jsonl").write_text(json.dumps({"text": "copy"}) + "\n")
    words = runner.words(
        data__train=runner.directory / "row.jsonl", method__name="pt", train__max_steps=1, log__every=1
    )
    data = [runner.directory / "row.jsonl", "--method", "pt", "--model", runner.home / "base"]
    out = runner.directory / "out"
    commands = [
        ["data", "check", *data],
        ["data", "show", *data],
        ["data", "stats", *data],
        ["run", *words, "--dry-run"],
        ["run", *words],
        ["runs", "list", out],
        ["runs", "report", out],
        ["ckpt", "list", out / "ckpt"],
        ["run", *words, "train.nothing=1"],
    ]
    said = []
    for command in commands:
        outcome = ernie(*command)
        said += [(command[:2], found) for found in DISAGREES.findall(outcome.out + outcome.err)]
        assert "1 " in outcome.out + outcome.err, command
    assert not said
