"""``dataset_info.json`` as data sources."""

import json
from pathlib import Path

import pytest
from erniecore_llamafactory.convert import convert
from erniecore_llamafactory.datasets import DatasetInfo, data_set, read_info
from erniecore_llamafactory.draft import Surroundings

PUBLISHED = json.loads((Path(__file__).with_name("fixtures") / "dataset_info.json").read_text())
INFO = DatasetInfo("data", PUBLISHED)


def entry(stage="sft", **content):
    return data_set("x", DatasetInfo("d", {"x": {"file_name": "x.json", **content}}), stage)


def made(info=INFO, **given):
    return convert({"do_train": True, **given}, Surroundings(info=info))


@pytest.mark.parametrize(
    ("name", "stage", "form"),
    [
        ("identity", "sft", "alpaca"),
        ("glaive_toolcall_en_demo", "sft", "messages"),
        ("mllm_demo", "sft", "messages"),
        ("dpo_en_demo", "dpo", "messages"),
        ("dpo_en_demo", "rm", "messages"),
        ("kto_en_demo", "kto", "messages"),
        ("c4_demo", "pt", "text"),
        ("wiki_demo", "pt", "text"),
    ],
)
def test_published_data_sets_with_files(name, stage, form):
    found = data_set(name, INFO, stage)
    assert (found.path, found.format) == (f"data/{PUBLISHED[name]['file_name']}", form)
    assert found.columns == {}


def test_data_sets_of_hubs_are_sources():
    """The name and the split, of the first hub that the entry names; of a part of a data set the import says what to fetch."""
    hub = {"file_name": None, "hf_hub_url": "a/b", "ms_hub_url": "c/d"}
    assert entry(**hub).path == "hf:a/b:train"
    assert entry(file_name=None, ms_hub_url="c/d", split="test").path == "ms:c/d:test"
    for part in ({"subset": "en"}, {"folder": "en"}):
        with pytest.raises(ValueError, match="is at hf_hub_url a/b, and nothing is downloaded"):
            entry(**hub, **part)
    parts = ("subset", "folder", "ranking")
    published = [n for n, content in PUBLISHED.items() if "hf_hub_url" in content and not any(map(content.get, parts))]
    paths = {data_set(name, INFO, "sft").path for name in published}
    assert paths
    assert all(path.startswith("hf:") for path in paths)


def test_columns_with_other_names():
    found = entry(columns={"prompt": "question", "response": "output", "kto_tag": "kto_tag"})
    assert found.columns == {"instruction": "question"}
    assert entry(formatting="sharegpt", columns={"messages": "turns"}).columns == {"messages": "turns"}
    assert entry("pt", columns={"prompt": "text"}).field == "text"


@pytest.mark.parametrize(
    ("stage", "content", "message"),
    [
        ("sft", {"file_name": None, "om_hub_url": "a/b"}, "om_hub_url a/b, and nothing is downloaded"),
        ("sft", {"formatting": "chatglm"}, "formatting must be one of alpaca"),
        ("sft", {"columns": {"reward": "r"}}, "alpaca has no column reward"),
        ("sft", {"columns": ["prompt"]}, "columns must be an object"),
        ("sft", {"formatting": "sharegpt", "tags": {"user_tag": "customer"}}, "user_tag is customer"),
        ("sft", {"formatting": "sharegpt", "tags": {"role": "x"}}, "there is no role"),
        ("sft", {"ranking": True}, "ranking"),
        ("dpo", {}, "ranking: true"),
        ("rm", {}, "ranking: true"),
        ("kto", {}, "kto_tag"),
        ("pt", {"formatting": "sharegpt"}, "documents"),
    ],
)
def test_what_cannot_be_read(stage, content, message):
    with pytest.raises(ValueError, match=message):
        entry(stage, **content)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"columns": {"images": "pictures"}}, "from the column images, not pictures"),
        ({"columns": {"audios": "audios"}}, "rows with sounds"),
        ({"num_samples": 5}, "every row is used, not 5"),
        ({"subset": "en"}, "subset en"),
    ],
)
def test_what_cannot_be_as_it_was_is_noted(content, text):
    assert text in " ".join(entry(**content).notes)


def test_unknown_data_sets_are_named():
    assert "has no data set nobody; it has identity" in made(dataset="identity,nobody").problems["dataset"]
    assert "cannot be read" in made(DatasetInfo(problem="x cannot be read"), dataset="identity").problems["dataset"]


def test_sources_and_mixes():
    two = made(dataset="identity, alpaca_en_demo").settings
    paths = [
        {"path": "data/identity.json", "format": "alpaca"},
        {"path": "data/alpaca_en_demo.json", "format": "alpaca"},
    ]
    assert two["data.train"].value == paths
    assert "data.mix" not in two  # concat is the default of both
    drawn = made(dataset="identity,alpaca_en_demo", mix_strategy="interleave_under", interleave_probs="0.7,0.3")
    assert [s["weight"] for s in drawn.settings["data.train"].value] == [0.7, 0.3]
    assert drawn.settings["data.mix"].value == "interleave-under"
    assert drawn.mapped["interleave_probs"] == "data.train"
    wrong = made(dataset="identity,alpaca_en_demo", mix_strategy="interleave_over", interleave_probs="0.7")
    assert "2 numbers" in wrong.problems["interleave_probs"]


def test_columns_become_settings_of_the_format():
    info = DatasetInfo("d", {n: {"file_name": f"{n}.json", "columns": {"prompt": n[0]}} for n in ("q1", "q2", "p")})
    assert made(info, dataset="q1,q2").settings["formats.alpaca.columns"].value == {"instruction": "q"}
    assert "other names for the same columns" in made(info, dataset="q1,p").problems["dataset"]
    assert made(info, dataset="p", stage="pt").settings["formats.text.field"].value == "p"


def test_rows_that_are_held_out():
    found = made(dataset="identity", eval_dataset="alpaca_en_demo", eval_strategy="steps", eval_steps=5).settings
    assert found["data.eval"].value == [{"path": "data/alpaca_en_demo.json", "format": "alpaca"}]
    assert (found["eval.every"].value, found["eval.batch_size"].value) == (5, 8)
    assert made(dataset="identity", val_size=0.1, eval_strategy="steps").settings["data.eval_fraction"].value == 0.1
    assert "data.eval_fraction" not in made(dataset="identity", val_size=0.1).settings
    assert "not a number of rows" in made(dataset="identity", val_size=50, do_eval=True).dropped["val_size"]


def test_the_file(tmp_path):
    assert "cannot be read" in read_info(str(tmp_path)).problem
    (tmp_path / "dataset_info.json").write_text("[")
    assert "no JSON" in read_info(str(tmp_path)).problem
    (tmp_path / "dataset_info.json").write_text("[]")
    assert "object" in read_info(str(tmp_path)).problem
    (tmp_path / "dataset_info.json").write_text('{"a": {"file_name": "a.json"}}')
    assert data_set("a", read_info(str(tmp_path)), "sft").path == str(tmp_path / "a.json")
