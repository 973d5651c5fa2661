"""The vision example's data: splits that share no text, the same images for the same seed; its page and its name."""

import pytest
from erniecore_demo import pages, reading
from PIL import Image

from erniecore.cli.app import main


def some(split, folder, count=60, seed=0):
    return list(pages.rows(split, count, folder, seed=seed))


def texts(rows):
    return {row["messages"][1]["content"] for row in rows}


def test_no_held_out_text_is_ever_trained_on(tmp_path):
    trained = {text for seed in range(2) for text in texts(some("train", tmp_path, 300, seed))}
    heldout = {text for seed in range(2) for text in texts(some("heldout", tmp_path, 300, seed))}
    assert len(heldout) > 100
    assert not trained & heldout


def test_rows_and_images_are_a_function_of_the_seed(tmp_path):
    one, same, other = (some("train", tmp_path / name, 4, seed) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert one == same != other
    for row in one:
        (file,) = row["images"]
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
        with Image.open(tmp_path / "a" / file) as image:
            assert image.size == (pages.WIDTH, pages.HEIGHT)
    assert [row["task"] for row in one] == ["word", "number", "word", "number"]


def test_a_text_fits_into_its_image_and_is_drawn_differently_each_time():
    random = pages.Random(0)
    longest = max((pages.FAMILIES[name](random) for name in pages.FAMILIES for _ in range(500)), key=len)
    assert pages.LEFT + pages.PITCH * (len(longest) - 1) + pages.PITCH / 2 + pages.SLIP <= pages.WIDTH
    one, other = (pages.draw("kato", random).tobytes() for _ in range(2))
    assert one != other


def test_the_page_shows_images_with_answers_mistakes_first(tmp_path):
    rows = some("heldout", tmp_path / "data", 4)
    after = [
        {"images": row["images"], "reference": text, "completion": text if i else "<b>", "correct": i > 0}
        for i, row in enumerate(rows)
        for text in [row["messages"][1]["content"]]
    ]
    before = [{**answer, "completion": ""} for answer in after]
    page = reading._page(tmp_path, before, after[::-1]).read_text(encoding="utf-8")
    assert "3 of 4 held-out images" in page
    assert page.count('src="data:image/png;base64,') == 4
    lines = [line for line in page.splitlines() if line.startswith("<tr class")]
    assert ["wrong" in line for line in lines] == [True, False, False, False]
    assert "&lt;b&gt;" in lines[0]
    assert "(nothing)" in lines[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["visoin"], "did you mean vision"), (["vision", "train.seed=1"], "takes one name")],
)
def test_another_example_is_refused(arguments, message, capsys):
    assert main(["run", "--demo", *arguments]) == 2
    assert message in capsys.readouterr().err
