"""Images, sounds and rows of parts that are damaged, enormous or of other types, for a model of text, images and tones; a
smaller model that is asked of one that is damaged; sites that are planned from a file that is none."""

import json
import shutil
import struct
import zlib
from io import BytesIO

import pytest
from hostile_files import DEEP, JSON_TEXTS, SPECIAL, WRONG, YAML, assert_refused, damage, edit, shown, special

from erniecore.errors import Exit

REFUSED = {Exit.USAGE, Exit.CHECKPOINT, Exit.DATA, Exit.ENVIRONMENT}
SIZE = (
    "hidden_size=16,intermediate_size=16,num_hidden_layers=4,num_attention_heads=2,num_key_value_heads=1,"
    "moe_intermediate_size=8,moe_num_experts=2"
)
PARTS = pytest.mark.area("images, sounds, rows of parts")
EXTRACT = pytest.mark.area("smaller models")
PLAN = pytest.mark.area("wide-area training")


@pytest.fixture(scope="session")
def painter(made, tmp_path_factory):
    """Directory with ``base``, a model of text, images and tones, and ``made``, its rows and files."""
    home = tmp_path_factory.mktemp("painter")
    made("parts", "examples", "--out", home / "made", "--motifs", 10)
    made("tokenizer", "train", home / "made/train.jsonl", "--vocab-size", 330, "--out", home / "tok")
    made("model", "init", "--model", "ernie5", "--size", SIZE, "--tokenizer", home / "tok", "--out", home / "base")
    return home


@pytest.fixture
def base(painter, box):
    """A model directory of this test's own."""
    return shutil.copytree(painter / "base", box / "base")


def png(width, height, body=b""):
    """A PNG that says so of its size."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")


def wav(length=800, channels=1, rate=8000, bits=16, data=b"\0" * 1600, kind=1):
    """A WAV file whose header says that."""
    form = struct.pack(
        "<HHIIHH", kind, channels, rate, (rate * channels * bits // 8) % 2**32, channels * bits // 8, bits
    )
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", length) + data
    return b"RIFF" + struct.pack("<I", len(body) % 2**32) + body


def gif():
    from PIL import Image

    out = BytesIO()
    Image.new("P", (8, 8)).save(out, "GIF")
    return out.getvalue()


IMAGES = {
    "empty": lambda: b"",
    "text": lambda: b"no image\n",
    "an enormous PNG": lambda: png(50_000, 50_000),
    "a PNG of the largest sizes": lambda: png(2**31 - 1, 2**31 - 1),
    "a PNG without pixels": lambda: png(8, 8),
    "a PNG of no size": lambda: png(0, 0),
    "a bomb": lambda: png(30_000, 30_000, bytes(1 << 26)),
    "an animation": gif,
    "SVG": lambda: b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "a PostScript program": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file\n",
}
SOUNDS = {
    "no samples": lambda: wav(0, data=b""),
    "more samples than it has": lambda: wav(2**32 - 1),
    "no channel": lambda: wav(channels=0),
    "thousands of channels": lambda: wav(channels=65_535, bits=8),
    "no rate": lambda: wav(rate=0),
    "the highest rate": lambda: wav(rate=2**32 - 1),
    "no bits": lambda: wav(bits=0),
    "odd bits": lambda: wav(bits=13),
    "float": lambda: wav(kind=3, bits=32),
    "NaN": lambda: wav(kind=3, bits=32, data=struct.pack("<f", float("nan")) * 400),
    "an unknown kind": lambda: wav(kind=0xFFFE),
    "half a sample": lambda: wav(3, data=b"\0\0\0"),
    "hours": lambda: wav(1 << 28, rate=8000, data=bytes(1 << 28)),
    "only a head": lambda: b"RIFF\xff\xff\xff\xffWAVE",
    "chunks without an end": lambda: b"RIFF\xff\xff\xff\xffWAVE" + b"LIST\x00\x00\x00\x00" * 200_000,
}


@PARTS
def test_the_model_works_before_anything_is_damaged(ernie, painter, base):
    file = next((painter / "made").rglob("*.png"))
    assert_refused(ernie("parts", "describe", file, "--model", base), {0})


@pytest.mark.parametrize("name", [*IMAGES, *SOUNDS])
@pytest.mark.parametrize("suffix", [".png", ".wav"])
@PARTS
def test_a_file_that_is_no_image_and_no_sound(ernie, base, box, name, suffix):
    file = box / f"part{suffix}"
    file.write_bytes({**IMAGES, **SOUNDS}[name]())
    assert_refused(ernie("parts", "describe", file, "--model", base), {0, *REFUSED})


@pytest.mark.parametrize("name", [*SOUNDS, "text"])
@PARTS
def test_a_sound_that_cannot_go_on(ernie, base, box, name):
    (box / "in.wav").write_bytes({**IMAGES, **SOUNDS}[name]())
    words = [
        "parts",
        "continue",
        "--audio",
        box / "in.wav",
        "--model",
        base,
        "--out",
        box / "out.wav",
        "--seconds",
        0.02,
    ]
    outcome = ernie(*words)
    assert_refused(outcome, {0, *REFUSED})
    assert (box / "out.wav").exists() == (outcome.code == 0)


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("words", [["describe", "FILE"], ["score", "--data", "FILE"],
                                   ["continue", "--audio", "FILE", "--out", "out.wav"]], ids=lambda words: words[0])  # fmt: skip
@PARTS
def test_what_is_no_file_is_never_read(ernie, base, box, words, kind):
    special(box / "part.wav", kind)
    chosen = [box / "part.wav" if word == "FILE" else word for word in words]
    assert_refused(ernie("parts", *chosen, "--model", base), REFUSED)


@pytest.mark.parametrize("kind", ["flip", "cut", "noise", "extra"])
@pytest.mark.parametrize("suffix", ["png", "wav"])
@pytest.mark.parametrize("seed", range(3))
@PARTS
def test_damaged_images_and_sounds(ernie, painter, base, box, suffix, kind, seed):
    file = box / f"part.{suffix}"
    shutil.copy(min((painter / "made").rglob(f"*.{suffix}")), file)
    damage(file, kind, seed)
    assert_refused(ernie("parts", "describe", file, "--model", base), {0, *REFUSED})


def of_parts(*made, given=({"text": "x"},)):
    return json.dumps({"given": given, "made": made}).encode() + b"\n"


ROWS = {
    "none": b"",
    "nothing made": of_parts(),
    "no kind": of_parts({"smell": "x"}),
    "two kinds": of_parts({"image": "a.png", "audio": "b.wav"}),
    "deep": b'{"made": ' + b"[" * DEEP + b"]" * DEEP + b"}\n",
    "outside": of_parts({"image": "../outside/secret.txt"}),
    "root": of_parts({"image": "/etc/passwd"}),
    "a URL": of_parts({"image": "http://127.0.0.1:9/a.png"}),
    "a data URL": of_parts({"image": "data:image/png;base64,AAAA"}),
    "NUL": of_parts({"image": "a\0.png"}),
    "surrogates": of_parts({"text": "\ud800"}),
    "a long text": of_parts({"text": "x" * 1_000_000}),
    **{f"JSON, {name}": text for name, text in JSON_TEXTS.items()},
    **{f"made, {shown(value)}": json.dumps({"made": value}).encode() for value in WRONG},
    **{f"given, {shown(value)}": of_parts({"text": "x"}, given=value) for value in WRONG},
    **{f"part, {shown(value)}": of_parts(value) for value in WRONG},
    **{f"text, {shown(value)}": of_parts({"text": value}) for value in WRONG},
    **{f"audio, {shown(value)}": of_parts({"audio": value}) for value in WRONG},
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("command", ["score", "check"])
@PARTS
def test_rows_of_parts_that_are_none(ernie, base, box, name, command):
    (box / "rows.jsonl").write_bytes(ROWS[name])
    words = {
        "score": ["parts", "score", "--model", base, "--data", box / "rows.jsonl"],
        "check": ["data", "check", box / "rows.jsonl", "--model", base, "--method", "next-group"],
    }[command]
    assert_refused(ernie(*words), {0, *REFUSED})


@pytest.mark.parametrize("value", [*WRONG, None, 10**30, 1e308], ids=shown)
@PARTS
def test_an_architecture_of_other_types(ernie, base, box, value):
    """Every key of config.json in turn, whatever it means."""
    for key in json.loads((base / "config.json").read_text()):
        before = (base / "config.json").read_bytes()
        edit(base / "config.json", **{key: value})
        assert_refused(ernie("model", "show", base), {0, *REFUSED})
        (base / "config.json").write_bytes(before)


@pytest.mark.parametrize("words", [["--depth", 10**9], ["--experts", 10**9], ["--k", 10**9], ["--depth", 1],
                                   ["--usage", "/etc"], ["--usage", "nowhere"], ["--data", "/etc/passwd"],
                                   ["--out", "base"], ["--out", "base/in"], ["--out", "/proc/x"]],
                         ids=lambda words: f"{words[0]} {words[1]}")  # fmt: skip
@EXTRACT
def test_sizes_and_places_that_a_smaller_model_cannot_have(ernie, base, box, words):
    before = {path: path.read_bytes() for path in base.rglob("*") if path.is_file()}
    out = [] if words[0] == "--out" else ["--out", box / "small"]
    assert_refused(ernie("extract", base, *words, *out), REFUSED)
    assert before == {path: path.read_bytes() for path in base.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ["flip", "cut", "hole", "noise", "extra"])
@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
@pytest.mark.parametrize("seed", range(3))
@EXTRACT
def test_a_damaged_model_gives_no_smaller_one(ernie, model, box, file, kind, seed):
    changed = damage(model / file, kind, seed)
    outcome = ernie("extract", model, "--depth", 1, "--out", box / "small")
    assert_refused(outcome, {0, *REFUSED})
    assert not (changed and outcome.code == 0 and file == "model.safetensors"), "damaged weights were copied"


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
@EXTRACT
def test_a_smaller_model_of_what_is_no_file(ernie, model, box, file, kind):
    special(model / file, kind)
    assert_refused(ernie("extract", model, "--depth", 1, "--out", box / "small"), REFUSED)
    assert not (box / "small" / "config.json").exists()


@pytest.mark.parametrize("text", YAML)
@PLAN
def test_sites_that_are_none(ernie, box, text):
    (box / "sites.yaml").write_bytes(YAML[text])
    assert_refused(ernie("wan", "plan", "--sites", box / "sites.yaml", "--parameters", "1e6"), REFUSED)


@pytest.mark.parametrize("value", [*WRONG, None, 0, 1e308, 10**400, ".inf", ".nan"], ids=shown)
@pytest.mark.parametrize("key", ["sites", "east", "up", "down", "delay", "step_seconds"])
@PLAN
def test_sites_with_values_of_another_type(ernie, box, key, value):
    site = {"up": 100, "down": 100, "delay": 0.01, "step_seconds": 1.0}
    sites = {"sites": {"east": dict(site), "west": dict(site)}}
    (sites if key == "sites" else sites["sites"] if key == "east" else sites["sites"]["east"])[key] = value
    (box / "sites.yaml").write_text(json.dumps(sites))
    outcome = ernie("wan", "plan", "--sites", box / "sites.yaml", "--parameters", "1e6")
    assert_refused(outcome, {0, *REFUSED})
    assert "nan" not in outcome.out.lower()


@pytest.mark.parametrize("number", ["0", "-1", "1e400", "nan", "inf", "9" * 5000, "1e30", "x", ""])
@PLAN
def test_parameters_that_are_no_number(ernie, box, number):
    site = {"up": 100, "down": 100, "delay": 0.01, "step_seconds": 1.0}
    (box / "sites.yaml").write_text(json.dumps({"sites": {"east": site, "west": site}}))
    assert_refused(ernie("wan", "plan", "--sites", box / "sites.yaml", "--parameters", number), {0, *REFUSED})
