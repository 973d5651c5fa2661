"""``ernie generate``: where the prompt comes from, what is printed where, and refusals before paddle."""

import io
import json
import subprocess
import sys

import pytest

from erniecore.cli.app import main
from erniecore.errors import Exit


@pytest.fixture
def generate(talker, capsys):
    """Run the command on the model: (exit code, stdout, stderr)."""

    def run(*args, model=talker / "model"):
        code = main(["generate", "--model", str(model), *args])
        return code, *capsys.readouterr()

    return run


def test_the_completion_and_nothing_else_is_on_stdout(generate):
    code, out, err = generate("--prompt", "copy 123", "--max-new-tokens", "5")
    assert code == Exit.OK
    assert out.endswith("\n")
    assert "note: the completion was truncated after 5 tokens" in err


def test_json_holds_the_completion_taken_apart(generate):
    body = json.loads(generate("--prompt", "copy 123", "--max-new-tokens", "5", "--json")[1])
    assert body["prompt"] == "copy 123"
    assert len(body["ids"]) == body["new_tokens"] == 5
    assert body["finish_reason"] == "length"
    assert body["text"] + "\n" == generate("--prompt", "copy 123", "--max-new-tokens", "5")[1]


def test_rates_of_the_prompt_and_of_what_follows_make_up_the_whole(generate):
    body = json.loads(generate("--prompt", "copy 123", "--max-new-tokens", "5", "--json")[1])
    first, rest = body["prompt_tokens"] / body["prefill_tokens_per_s"], 4 / body["decode_tokens_per_s"]
    assert 5 / body["tokens_per_s"] == pytest.approx(first + rest, rel=0.05)
    alone = json.loads(generate("--prompt", "copy 123", "--max-new-tokens", "1", "--json")[1])
    assert alone["decode_tokens_per_s"] == 0


def test_the_template_is_used_unless_raw(generate):
    chat, raw = (
        json.loads(generate("--prompt", "copy 123", "--max-new-tokens", "1", "--json", *more)[1])
        for more in ([], ["--raw"])
    )
    assert chat["prompt_tokens"] > raw["prompt_tokens"]
    with_system = generate("--prompt", "copy 123", "--system", "copy", "--max-new-tokens", "1", "--json")[1]
    assert json.loads(with_system)["prompt_tokens"] > chat["prompt_tokens"]


def test_the_switch_for_reasoning_needs_a_template_that_has_one(generate):
    code, _, err = generate("--prompt", "copy 123", "--thinking")
    assert (code, "no switch for reasoning" in err) == (Exit.USAGE, True)
    code, _, err = generate("--prompt", "copy 123", "--no-thinking", "--raw")
    assert (code, "--thinking needs the chat template" in err) == (Exit.USAGE, True)


def test_a_prompt_from_a_file_or_stdin_is_the_same_prompt(generate, tmp_path, monkeypatch):
    file = tmp_path / "prompt.txt"
    file.write_text("copy 文字", encoding="utf-8")
    direct = generate("--prompt", "copy 文字", "--max-new-tokens", "3")
    assert generate("--prompt-file", str(file), "--max-new-tokens", "3") == direct
    monkeypatch.setattr(sys, "stdin", io.StringIO("copy 文字"))
    assert generate("--prompt-file", "-", "--max-new-tokens", "3") == direct


def test_drawing_depends_on_the_seed_alone(generate):
    def draw(*args):
        return generate("--prompt", "copy", "--max-new-tokens", "12", *args)[1]

    hot = ["--temperature", "3"]
    assert draw(*hot, "--seed", "1") == draw(*hot, "--seed", "1")
    assert len({draw(*hot, "--seed", str(seed)) for seed in range(4)}) > 1
    assert draw("--temperature", "0", "--seed", "5") == draw()
    assert draw("--top-k", "1", "--seed", "5") == draw()


def test_speculative_decoding_gives_the_same_completion_and_reports_the_acceptance_rate(generate):
    args = "--prompt", "copy 123 123 123", "--max-new-tokens", "40", "--json"
    plain, speculated = json.loads(generate(*args)[1]), generate(*args, "--speculative", "lookup")
    body = json.loads(speculated[1])
    assert (body["ids"], plain["draft_tokens"]) == (plain["ids"], 0)
    assert body["draft_tokens"] >= body["accepted_tokens"]
    assert f"note: {body['accepted_tokens']} of {body['draft_tokens']} draft tokens accepted" in speculated[2]


def test_mtp_layers_that_the_model_lacks_are_refused(generate):
    code, _, err = generate("--prompt", "copy", "--speculative", "mtp")
    assert code == Exit.USAGE
    assert "no multi-token-prediction layers" in err


def test_a_streamed_completion_is_the_same_text(generate):
    args = ["--prompt", "copy 123", "--max-new-tokens", "20", "--temperature", "2"]
    assert generate(*args, "--stream")[1] == generate(*args)[1]


def test_a_streamed_json_completion_is_lines(generate):
    lines = generate("--prompt", "copy 1", "--max-new-tokens", "9", "--stream", "--json")[1].splitlines()
    *chunks, completion = map(json.loads, lines)
    assert "".join(p["text"] for p in chunks) == completion["text"]
    assert {p["event"] for p in chunks} == {"text"}
    assert completion["event"] == "completion"


def test_a_stop_string_ends_the_completion(generate):
    args = ["--prompt", "copy 123", "--max-new-tokens", "20"]
    text = generate(*args)[1].rstrip("\n")
    stop = text[len(text) // 2]
    body = json.loads(generate(*args, "--stop", stop, "--json")[1])
    assert body["text"] == text.split(stop)[0]
    assert body["finish_reason"] == "stop-string"


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ([], Exit.USAGE, "--prompt or --prompt-file"),
        (["--prompt", "a", "--prompt-file", "b"], Exit.USAGE, "--prompt or --prompt-file"),
        (["--prompt", ""], Exit.USAGE, "prompt is empty"),
        (["--prompt-file", "missing.txt"], Exit.USAGE, "missing.txt"),
        (["--prompt", "a", "--raw", "--system", "b"], Exit.USAGE, "--raw"),
        (["--prompt", "a", "--top-p", "2"], Exit.USAGE, "top_p"),
        (["--prompt", "a", "--max-new-tokens", "0"], Exit.USAGE, "--max-new-tokens"),
        (["--prompt", "a" * 200], Exit.USAGE, "max_position_embeddings is 96"),
        (["--prompt", "a", "--max-new-tokens", "96"], Exit.USAGE, "ask for at most"),
        (["--prompt", "a", "--temprature", "1"], Exit.USAGE, "did you mean --temperature?"),
        (["--prompt", "a", "--device", "cpuu"], Exit.USAGE, "cpu"),
    ],
)
def test_refusals_say_what_to_do(generate, args, code, message):
    got, out, err = generate(*args)
    assert (got, out) == (code, "")
    assert message in err


def test_a_wrong_directory_names_the_nearest(generate, talker):
    code, _, err = generate("--prompt", "a", model=talker / "modle")
    assert code == Exit.USAGE
    assert f"did you mean {talker / 'model'}?" in err


def test_a_model_without_tokenizer_is_an_error_of_the_model(generate, talker, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((talker / "model" / name).read_bytes())
    code, _, err = generate("--prompt", "a", model=tmp_path)
    assert code == Exit.CHECKPOINT
    assert "no usable tokenizer" in err


def test_wrong_words_fail_without_importing_paddle(talker):
    script = (
        "import sys\nfrom erniecore.cli.app import main\n"
        f"code = main(['generate', '--model', {str(talker / 'model')!r}, '--prompt', ''])\n"
        "print(code, 'paddle' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(int(Exit.USAGE)), "False"]
