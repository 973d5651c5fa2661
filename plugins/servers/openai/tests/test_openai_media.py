"""Images in messages, for both models that see: the tokens and completions of ``ernie generate``, alone and in company; what
cannot be read is refused with the place of its part."""

import asyncio
import base64
import io
import threading

import httpx
import numpy as np
import pytest
from engines import ask, engine_of
from erniecore_generation.media import asked, prompt_media, references
from erniecore_generation.respond import Responder, generate_text
from erniecore_openai.config import OpenAIConfig
from erniecore_openai.logprobs import TokenTexts
from erniecore_openai.serving import read_model
from erniecore_openai.state import Serving
from openai_client import Client
from PIL import Image
from seers import MARKERS, make_seer

from erniecore.api.data import IGNORE, Sample
from erniecore.api.training import collate

BODY = {"temperature": 0, "max_tokens": 9, "ignore_eos": True, "logprobs": True}


@pytest.fixture(scope="module", params=MARKERS)
def home(request, tmp_path_factory):
    return make_seer(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def model(home):
    found = read_model(OpenAIConfig(name="seer", rows=4), home / "model")
    found.engine.start()
    yield found
    found.engine.stop(drain=False)


@pytest.fixture
def opened(model):
    made = []

    def start(**settings):
        made.append(Serving(OpenAIConfig(**settings)))
        made[-1].open(model)
        return Client(made[-1])

    yield start
    for serving in made:
        serving.close()


@pytest.fixture
def client(opened):
    return opened()


def data_url(data, kind="image/png"):
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image(url):
    return {"type": "image_url", "image_url": {"url": url}}


def user(*parts):
    told = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return [{"role": "user", "content": told}]


def test_answers_are_those_of_generate_alone_and_in_company(home, model, client):
    urls = {name: data_url((home / name).read_bytes()) for name in ("a.png", "b.png", "c.png")}
    bodies = [
        user(image(urls["a.png"]), "What is it?"),
        user("What?"),
        user("1 ", image(urls["b.png"]), " 2 ", image(urls["c.png"])),
        user(image(urls["c.png"]), "What is it?"),
    ]
    own = [
        [asked("What is it?", [home / "a.png"])],
        [asked("What?", [])],
        [asked("1 <image> 2 <image>", [home / "b.png", home / "c.png"])],
        [asked("What is it?", [home / "c.png"])],
    ]
    plain = {"max_new_tokens": 9, "ignore_eos": True}
    expected = [generate_text(model.engine.model, model.tokenizer, [prompt], **plain)[0] for prompt in own]
    alone = [client.chat(messages=body, **BODY)[1] for body in bodies]
    texts = TokenTexts(model.tokenizer)
    tokens = [[entry["token"] for entry in a["choices"][0]["logprobs"]["content"]] for a in alone]
    assert tokens == [[texts.of(token) for token in e.ids] for e in expected]
    assert len({tuple(each) for each in tokens}) == 4
    # placeholders are tokens of the prompt
    assert [a["usage"]["prompt_tokens"] for a in alone] == [e.prompt_tokens for e in expected]
    assert alone[0]["usage"]["prompt_tokens"] > alone[1]["usage"]["prompt_tokens"] + 4
    ids = client.post("/tokenize", messages=bodies[2])[1]["tokens"]
    assert ids == Responder(model.engine.model, model.tokenizer).encode(own[2]).ids

    async def ask_all():
        transport = httpx.ASGITransport(client.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as session:
            sent = [session.post("/v1/chat/completions", json={"messages": body, **BODY}) for body in bodies * 2]
            return [response.json() for response in await asyncio.gather(*sent)]

    together = asyncio.run(ask_all())
    assert [a["choices"][0] for a in together] == [a["choices"][0] for a in alone * 2]


def test_prompts_with_images_come_in_chunks_that_cut_no_image_and_company_changes_no_bit(home, model):
    """As one pass but for rounding, and bit by bit the same among others."""
    responder = Responder(model.engine.model, model.tokenizer)
    text, files = "What is it? " * 6, [home / name for name in ("a.png", "b.png", "c.png")]
    prompts = [
        responder.encode([asked(text + "<image>" + text, files[2:])]),
        responder.encode([asked("<image>" * 3 + text, files)]),
        responder.encode([asked(text, [])]),
        responder.encode([asked("<image>1" + text + "<image>" + text + "<image>", files)]),
    ]
    wanted = [(p.ids, {"new": 9, "logprobs": 2, "media": p.media, "stream": i}) for i, p in enumerate(prompts)]
    for media in (p.media for p in prompts if p.media is not None):
        ends = {media.boundary(start, end) for start in (0, media.spans[0].end) for end in range(start + 1, 150)}
        assert not {place for s in media.spans for place in range(s.start + 1, s.end)} & ends

    def outcomes(together, **options):
        engine = engine_of(model.engine.model, invariant=True, **options)
        engine.start()
        before = ask(engine, prompts[2].ids, new=40, logprobs=0) if together else None
        callers = []
        for ids, options in [*wanted, *wanted] if together else wanted:
            callers.append(ask(engine, ids, **options))
            if not together:
                callers[-1].over.wait()
        found = [caller.outcome for caller in callers]
        assert before is None or len(before.ids) == 40
        engine.stop()
        return found, engine.stats().steps

    whole, few = outcomes(False, rows=1, chunk=512)
    alone, many = outcomes(False, rows=1)
    assert many > few + 10  # steps in which others would have been decoded
    assert [told[0] for told in alone] == [told[0] for told in whole]
    for one, other in zip(alone, whole, strict=True):
        np.testing.assert_allclose([e.logprob for e in one[1]], [e.logprob for e in other[1]], atol=1e-4)
    assert outcomes(True, rows=3)[0] == alone + alone


def test_beginnings_with_images_are_found_by_what_they_show_and_change_no_bit(home, model):
    responder = Responder(model.engine.model, model.tokenizer)
    with Image.open(home / "c.png") as shown:
        Image.fromarray(255 - np.asarray(shown.convert("RGB"))).save(home / "negative.png")
    text = "What is it? " * 6
    wanted = [
        responder.encode([asked("<image>" + text + more, [home / name])])
        for name, more in (("c.png", ""), ("c.png", "And what else is there? "), ("negative.png", ""), ("c.png", ""))
    ]
    assert wanted[0].ids == wanted[2].ids  # pixels are all that differs

    def outcomes(**options):
        engine, found = engine_of(model.engine.model, invariant=True, rows=1, **options), []
        engine.start()
        for prompt in wanted:
            found.append(ask(engine, prompt.ids, new=9, logprobs=2, media=prompt.media))
            found[-1].over.wait()
        engine.stop()
        return [caller.outcome for caller in found], [caller.end.cached_tokens for caller in found]

    bare, nothing = outcomes(prefix_bytes=0)
    stored, cached = outcomes()
    assert nothing == [0, 0, 0, 0]
    assert stored == bare
    assert bare[0] != bare[2]
    behind = wanted[0].media.spans[0].end
    assert cached[0] == 0
    assert cached[1] >= behind
    assert cached[2] < wanted[0].media.spans[0].start + 1
    assert behind <= cached[3] < len(wanted[3].ids)


def test_what_is_read_image_by_image_is_what_the_batches_of_training_have(home, model):
    template = model.tokenizer.chat_template
    messages = [asked("1 <image> 2 <image><image>", [home / name for name in ("c.png", "a.png", "b.png")])]
    ids = np.array(Responder(model.engine.model, model.tokenizer).encode(messages).ids)
    media = references(template, messages, ids.tolist())
    sample = Sample(
        ids, np.full(len(ids), IGNORE), np.arange(len(ids)), np.full(len(ids), len(ids), np.int32), media=media
    )
    batch = template.complete(collate([[sample]], pad_id=0), [[sample]])
    positions, inputs = prompt_media(template, ids, media).part(0, len(ids))
    np.testing.assert_array_equal(positions, batch.position_ids[0])
    assert inputs.keys() == batch.inputs.keys()
    for name, values in inputs.items():
        np.testing.assert_array_equal(values, batch.inputs[name], err_msg=name)


def test_images_are_decoded_beside_the_thread_for_texts(home, model, opened, monkeypatch):
    """As many at a time as the settings say; a request for text is answered meanwhile."""
    template, entered, go = type(model.tokenizer.chat_template), [], threading.Event()
    load = template._load
    monkeypatch.setattr(template, "_load", lambda *args: (entered.append(args), go.wait(), load(*args))[-1])
    client = opened(media_threads=2)
    parts = [image(data_url((home / "a.png").read_bytes()))] * 3

    async def ask_both():
        transport = httpx.ASGITransport(client.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as session:
            with_images = asyncio.ensure_future(
                session.post("/v1/chat/completions", json={"messages": user(*parts), **BODY})
            )
            while len(entered) < 2:
                await asyncio.sleep(0.01)
            texts = await session.post("/v1/chat/completions", json={"messages": user("What?"), **BODY})
            waited = len(entered), with_images.done()
            go.set()
            return texts.status_code, waited, (await with_images).status_code

    assert asyncio.run(ask_both()) == (200, (2, False), 200)
    assert not client.serving._media_bytes


def test_files_are_read_below_the_roots_alone(home, client, opened, tmp_path):
    url = data_url((home / "a.png").read_bytes())
    expected = client.chat(messages=user(image(url), "What?"), **BODY)[1]["choices"]
    rooted = opened(media_roots=(str(tmp_path), str(home)))
    for path in (str(home / "a.png"), f"file://{home}/a.png"):
        status, refused = client.chat(messages=user("What?", image(path)))
        assert (status, refused["error"]["code"]) == (400, "invalid_media")
        assert "messages[0].content[1]: files of the server are not read" in refused["error"]["message"]
        assert rooted.chat(messages=user(image(path), "What?"), **BODY)[1]["choices"] == expected
    (tmp_path / "link.png").symlink_to(home / "a.png")
    for path in ("/etc/hostname", f"{home}/../passwd", "link.png", "none.png", str(tmp_path)):
        status, refused = rooted.chat(messages=user(image(path)))
        assert status == 400, path
        assert str(tmp_path) not in refused["error"]["message"]
        assert refused["error"]["message"].startswith("messages[0].content[0].image_url.url: "), refused


def damaged(home):
    whole = (home / "a.png").read_bytes()
    return whole[:200] + b"\0" * (len(whole) - 200)


@pytest.mark.parametrize(
    ("part", "where", "reason"),
    [
        (image("https://example.com/a.png"), "content[1]", "not fetched"),
        (image("data:image/png,abc"), "content[1]", "not in base64"),
        (image("data:image/png;base64,@@@@"), "content[1]", "damaged"),
        (image(data_url(b"no image")), "content[1]", "not an image"),
        (image(data_url(b"")), "content[1]", "image"),
        ("<image>", "content[1]", "would stand for another one"),
        (
            {"type": "image_url", "image_url": {"url": "data:", "detail": "low"}},
            "content[1].image_url.detail",
            "'high'",
        ),
        ({"type": "image_url"}, "content[1].image_url", "required"),
        ({"type": "input_audio", "input_audio": {}}, "content[1]", "type input_audio are not supported"),
        ({"type": "video_url", "video_url": {"url": data_url(b"x", "video/mp4")}}, "content[1]", ""),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(part, where, reason, home, client):
    url = data_url((home / "a.png").read_bytes())
    status, refused = client.chat(messages=user(image(url), part))
    error = refused["error"]
    assert (status, error["type"]) == (400, "invalid_request_error"), refused
    assert error["message"].startswith(f"messages[0].{where}"), refused
    assert reason in error["message"]
    assert "base64,i" not in error["message"]  # nothing of the image itself


def test_pixels_that_are_damaged_and_images_that_are_too_large_name_their_part(home, client):
    good = image(data_url((home / "a.png").read_bytes()))
    status, refused = client.chat(messages=user(good, image(data_url(damaged(home)))))
    assert status == 400
    assert refused["error"]["message"].startswith("messages[0].content[1].image_url.url: "), refused
    bomb = io.BytesIO()
    Image.fromarray(np.zeros((9000, 9000), np.uint8)).save(bomb, "PNG")
    status, refused = client.chat(messages=user(image(data_url(bomb.getvalue()))))
    assert status == 400
    assert "messages[0].content[0].image_url.url" in refused["error"]["message"]
    assert "pixels" in refused["error"]["message"]


def test_a_marker_in_two_parts_of_text_is_one(home, client):
    """What the template reads is the whole text, in which an image would stand at the place of the text's marker."""
    url = image(data_url((home / "a.png").read_bytes()))
    for parts in (("<im", "age>", url), ("a<image", ">", url), (url, "<", "image>"), ("<", "image", ">", url)):
        status, refused = client.chat(messages=user(*parts))
        assert status == 400, parts
        assert refused["error"]["message"].startswith("messages[0].content: <image> in the text"), refused
    # a template that writes images first brings both ends together
    status, answer = client.chat(messages=user("<im", url, "age>"), **BODY)
    assert status == (400 if "paddleocr-vl" in home.name else 200), answer
    assert status == 200 or "the text becomes a marker of an image" in answer["error"]["message"]


def test_images_are_decoded_only_where_the_engine_takes_them(home, model, client, opened, monkeypatch):
    """A body of 30 kB holds images of 3 GB: those of a prompt beyond the context, and those beyond the memory, are refused."""
    bomb = io.BytesIO()
    Image.new("1", (1400, 1400)).save(bomb, "PNG")
    part = image(data_url(bomb.getvalue()))
    decoded = []
    template = type(model.tokenizer.chat_template)
    load = template._load
    monkeypatch.setattr(template, "_load", lambda *args: decoded.append(args) or load(*args))
    status, refused = client.chat(messages=user(*[part] * 60))
    assert (status, "longer than the model's context" in refused["error"]["message"]) == (400, True)
    counted = client.post("/tokenize", messages=user(*[part] * 60))[1]["count"]
    assert f"got {counted} tokens" in refused["error"]["message"]
    assert decoded == []

    small = user(image(data_url((home / "c.png").read_bytes())), "What?")
    limited = opened(media_bytes=2000)
    status, refused = limited.chat(messages=small, **BODY)
    assert (status, "at most 2000 are taken" in refused["error"]["message"]) == (400, True)
    # what one request holds is free when it has ended, and only then
    serving = opened(media_bytes=1 << 20).serving
    serving.hold_media("other", (1 << 20) - 2000)
    tight = Client(serving)
    status, refused = tight.chat(messages=small, **BODY)
    assert (status, refused["error"]["code"]) == (429, "media_full")
    serving.ended("other")
    assert [tight.chat(messages=small, **BODY)[0] for _ in range(3)] == [200] * 3
    assert not serving._media_bytes


def test_only_users_show_images(home, client):
    part = image(data_url((home / "a.png").read_bytes()))
    status, refused = client.chat(messages=[{"role": "system", "content": [part]}, *user("a")])
    assert (status, "belong to messages of the user" in refused["error"]["message"]) == (400, True)


def test_what_was_answered_is_not_kept(home, model, client):
    """Images come as data URLs of megabytes; the template remembers their sizes alone."""
    client.chat(messages=user(image(data_url((home / "a.png").read_bytes()))), **BODY)
    assert all(len(key.source) < 200 for key in model.tokenizer.chat_template._known)
