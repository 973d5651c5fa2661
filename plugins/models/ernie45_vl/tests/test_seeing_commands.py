"""``ernie generate --image``, ``/image`` of ``ernie chat`` and ``ernie eval`` on rows with images, for both models that see."""

import io
import json

import paddle  # noqa: TID253
import pytest
from engines import ask
from engines import running as running
from erniecore_ernie45_vl.multimodal import MultimodalModel
from erniecore_generation.media import asked
from erniecore_generation.respond import Responder, generate_text
from erniecore_generation.sampling import Sampling
from seers import MARKERS, make_seer

import erniecore
from erniecore.api import Exit, UsageError
from erniecore.cli.app import main


@pytest.fixture(scope="module", params=MARKERS)
def home(request, tmp_path_factory):
    """A model that sees, with large random weights so that it tells images apart, and three images."""
    return make_seer(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def loaded(home):
    return erniecore.load_model(home / "model"), erniecore.load_tokenizer(home / "model")


def test_prompts_with_several_images_in_a_batch_are_answered_as_each_alone(home, loaded):
    """Other prompts wait while one slot is taken; texts and images mix; one prompt at a time is the older way."""
    model, tokenizer = loaded
    prompts = [
        [asked("What is it?", [home / "a.png"])],
        [asked("What?", [])],
        [asked("1 <image> 2 <image>", [home / "b.png", home / "c.png"])],
        [asked("What is it?", [home / "c.png"])],
    ]
    options = {"max_new_tokens": 9, "ignore_eos": True}
    together = generate_text(model, tokenizer, prompts, batch_size=0, **options)
    in_turns = generate_text(model, tokenizer, prompts, batch_size=2, **options)
    alone = [generate_text(model, tokenizer, [prompt], **options)[0] for prompt in prompts]
    assert [c.ids for c in together] == [c.ids for c in in_turns] == [c.ids for c in alone]
    assert len({c.ids for c in together}) == 4
    responder = Responder(model, tokenizer)
    for prompt, found in zip(prompts, alone, strict=True):
        encoded = responder.encode(prompt)
        if encoded.media is not None:
            _, inputs = encoded.media.part(0, len(encoded.ids))
            pixels = {n: paddle.to_tensor(inputs[n]) for n in ("pixel_values", "image_grid_thw")}
            seen = MultimodalModel(model, **pixels)
            expected = erniecore.generate(seen, [encoded.ids], max_new_tokens=9, eos=())
            assert expected.numpy()[0].tolist() == list(found.ids)


def test_the_serving_engine_takes_prompts_with_images(home, loaded, running):
    """In chunks that cut no image; the same ids with another image have another completion."""
    model, tokenizer = loaded
    prompts = [[asked("What is it?", [home / name])] for name in ("a.png", "b.png", "a.png")] + [[asked("What?", [])]]
    options = {"max_new_tokens": 9, "ignore_eos": True}
    alone = [list(generate_text(model, tokenizer, [prompt], **options)[0].ids) for prompt in prompts]
    responder, engine = Responder(model, tokenizer), running(model, chunk=4)
    encoded = [responder.encode(prompt) for prompt in prompts]
    callers = [ask(engine, prompt.ids, new=9, media=prompt.media) for prompt in encoded]
    assert [caller.ids for caller in callers] == alone
    assert alone[0] != alone[1]
    assert len(encoded[0].ids) > 4


def test_copies_of_a_prompt_share_its_images(home, loaded):
    from erniecore_generation.batching import Pool
    from erniecore_generation.generate import evaluating

    model, tokenizer = loaded
    responder = Responder(model, tokenizer)
    prompts = [responder.encode([asked("What?", [home / name])]) for name in ("a.png", "b.png")]
    given = {"sampling": Sampling(), "max_new_tokens": 5}
    found = []
    for copies in (1, 3):
        media = [prompt.media for prompt in prompts]
        pool = Pool(model, [prompt.ids for prompt in prompts], copies=copies, media=media, **given)
        with evaluating(model):
            assert list(pool.run())
        found.append([pool.completion_ids(row).tolist() for row in range(2 * copies)])
    assert found[1] == [ids for ids in found[0] for _ in range(3)]


def test_generate_shows_an_image(home, capsys):
    answers = []
    for name in ("a.png", "c.png", "a.png"):
        args = ["--image", str(home / name), "--prompt", "What?", "--max-new-tokens", "6", "--ignore-eos", "--json"]
        assert main(["generate", "--model", str(home / "model"), *args]) == Exit.OK
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0]["ids"] == answers[2]["ids"] != answers[1]["ids"]
    assert answers[1]["prompt_tokens"] > answers[0]["prompt_tokens"]
    command = ["generate", "--model", str(home / "model"), "--image", str(home / "a.png"), "--max-new-tokens", "1"]
    assert main(command) == Exit.OK  # an image alone


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--image", "none.png", "--prompt", "What?"], Exit.DATA, "none.png"),
        (["--image", "tok/tokenizer.model", "--prompt", "What?"], Exit.DATA, "not an image"),
        (["--image", "a.png", "--prompt", "<image><image>"], Exit.USAGE, "do not fit"),
        (["--image", "a.png", "--prompt", "What?", "--raw"], Exit.USAGE, "--image needs the chat template"),
    ],
)
def test_an_image_that_cannot_be_shown_is_named(args, code, message, home, capsys, monkeypatch):
    monkeypatch.chdir(home)
    assert main(["generate", "--model", "model", *args]) == code
    assert message in capsys.readouterr().err


def test_text_models_refuse_images_by_name(home, talker, capsys):
    image = str(home / "a.png")
    code = main(["generate", "--model", str(talker / "model"), "--image", image, "--prompt", "What?"])
    err = capsys.readouterr().err
    assert (code, "this model reads no images" in err, "a.png" in err) == (Exit.USAGE, True, True)


def test_a_link_that_is_typed_is_followed(home, tmp_path, loaded):
    (tmp_path / "link.png").symlink_to(home / "a.png")
    _, tokenizer = loaded
    text = tokenizer.chat_template.render([asked("What?", [tmp_path / "link.png"])])
    assert text == tokenizer.chat_template.render([asked("What?", [home / "a.png"])])
    with pytest.raises(UsageError, match="markers"):
        asked("<image>", [home / "a.png", home / "b.png"])


def chat(home, monkeypatch, *lines):
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    assert main(["chat", "--model", str(home / "model"), "--max-new-tokens", "6", "--temperature", "0"]) == Exit.OK


def test_chat_shows_an_image_with_the_next_message(home, monkeypatch, capsys, tmp_path):
    image, saved = f"/image {home / 'c.png'}", tmp_path / "talk.jsonl"
    chat(home, monkeypatch, "/image", image, "/image", "What is it?", "And?", f"/save {saved}", "/image none.png")
    out, err = capsys.readouterr()
    assert "usage: /image FILE" in err
    assert "c.png" in err
    assert "does not exist" in err
    row = json.loads(saved.read_text())
    assert [turn["content"].count("<image>") for turn in row["messages"]][:3] == [1, 0, 0]
    assert row["images"] == [str(home / "c.png")]
    chat(home, monkeypatch, "What is it?")
    assert out.splitlines()[0] != capsys.readouterr().out.splitlines()[0]


def test_chat_with_a_text_model_refuses_an_image(home, talker, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(f"/image {home / 'a.png'}\n"))
    assert main(["chat", "--model", str(talker / "model")]) == Exit.OK
    assert "this model reads no images" in capsys.readouterr().err


def test_eval_measures_loss_and_answers_of_rows_with_images(home, capsys):
    lines = []
    for images, text in ((["a.png"], "<image>What?"), (["b.png", "c.png"], "<image><image>What?"), ([], "What?")):
        turns = [{"role": "user", "content": text}, {"role": "assistant", "content": "it"}]
        lines.append(json.dumps({"messages": turns, **({"images": images} if images else {})}))
    (home / "rows.jsonl").write_text("\n".join(lines) + "\n")
    (home / "text.jsonl").write_text(lines[-1] + "\n")
    (home / "other.jsonl").write_text("\n".join(lines).replace("a.png", "b.png") + "\n")
    found = {}
    kept = ["--completions", str(home / "kept.jsonl")]
    for name, more in (("rows", ["--generate", "--max-new-tokens", "3", *kept]), ("text", []), ("other", [])):
        command = ["eval", "--model", str(home / "model"), "--data", str(home / f"{name}.jsonl"), "--json", *more]
        assert main(command) == Exit.OK
        found[name] = json.loads(capsys.readouterr().out)
    assert (found["rows"]["rows"], found["rows"]["dropped"], found["text"]["rows"]) == (3, 0, 1)
    assert found["rows"]["exact_match"]["n"] == 3
    images = [json.loads(line).get("images") for line in (home / "kept.jsonl").read_text().splitlines()]
    assert sorted(filter(None, images)) == [["a.png"], ["b.png", "c.png"]]
    assert images.count(None) == 1
    assert found["rows"]["loss"] != found["other"]["loss"]
    one = main(
        ["eval", "--model", str(home / "model"), "--data", str(home / "rows.jsonl"), "--json", "--batch-size", "1"]
    )
    assert one == Exit.OK
    assert json.loads(capsys.readouterr().out)["loss"] == pytest.approx(found["rows"]["loss"], rel=1e-5)
