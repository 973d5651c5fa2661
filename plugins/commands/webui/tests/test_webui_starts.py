"""Where a new run begins: recipes, files of ours and of other toolkits, the newest trainable model; and what would fit."""

import json
import os
import re
import shutil

import pytest
import yaml
from erniecore_webui import draft_plan
from erniecore_webui.actions import Result
from erniecore_webui.draft_plan import accelerator_memory, needs_of, steps_from_epochs
from erniecore_webui.pages.errors import all_codes
from erniecore_webui.starts import all_recipes
from erniecore_webui.trainable import offered, trains

FOREIGN = """# of another toolkit
model_name_or_path: ./model
stage: SFT
fine_tuning: LoRA
train_dataset_path: rows.jsonl
train_dataset_type: messages
max_steps: 10
output_dir: runs/here
"""


def settings_of(page):
    return page.partition("<textarea")[2].partition("\n")[2].partition("</textarea>")[0]


@pytest.fixture
def home(site, talker):
    """The directory of commands has rows and a model."""
    (site.home / "rows.jsonl").write_bytes((talker / "rows.jsonl").read_bytes())
    shutil.copytree(talker / "model", site.home / "model")
    site.models.forget()
    return site.home


def test_a_recipe_begins_a_run_whose_model_is_new(browser, home):
    assert {"ernie45/tiny", "ernie45-moe/21b-a3b"} <= {recipe.name for recipe in all_recipes()}
    page = browser.get("/new?recipe=ernie45/tiny").text
    text = settings_of(page)
    found = yaml.safe_load(text)
    assert found["model"] == {"name": "ernie45", "size": "tiny", "tokenizer": "model"}
    assert found["data"] == {"train": ["rows.jsonl"], "max_seq_len": 256}
    assert (found["method"], found["train"]) == ({"name": "pt"}, {"learning_rate": 1e-3})
    assert text.startswith("# ernie45/tiny: A model of the same shape")
    assert browser.get("/new?recipe=nothing").status_code == 400


def test_a_recipe_without_a_tokenizer_is_an_error_of_its_field(browser, site, monkeypatch):
    """A plan needs none, a run does."""
    monkeypatch.setattr(site.actions, "asked", lambda *a: Result(0, '{"parameters": {}}'))
    text = "model: {name: ernie45, size: tiny}\nmethod: pt\n"
    found = browser.post("/new/check", data={"text": text}).json()
    assert [error["code"] for error in found["errors"]["model.tokenizer"]] == ["ERN-C010"]
    assert browser.post("/new/start", data={"text": text, "name": "x"}).status_code == 400


def test_settings_files_below_the_roots_begin_a_run_and_no_others_do(browser, home):
    (home / "mine.yaml").write_text("# ours\nmodel: {path: model}  # a base\nmethod: sft\n")
    (home / "other.yaml").write_text("services: {web: {image: x}}\n")
    (home / "link.yaml").symlink_to("/etc/hostname")
    (home / "runs/first/settings.yaml").write_text("model: x\n")
    page = browser.get("/new?file=mine.yaml").text
    assert settings_of(page) == (home / "mine.yaml").read_text()
    assert 'value="mine-1"' in page
    offered_files = page.partition('id="file"')[2].partition("</select>")[0]
    assert re.findall(r"<option[^>]*>([^<]+)</option>", offered_files)[1:] == ["mine.yaml"]
    for name in ("other.yaml", "link.yaml", "../x.yaml", "/etc/passwd", "runs/first/settings.yaml"):
        assert browser.get("/new", params={"file": name}).status_code == 400


def test_settings_of_another_toolkit_are_recognized_and_converted_key_by_key(browser, home):
    found = browser.post("/new/check", data={"text": FOREIGN}).json()
    assert (found["toolkit"], found["text"]) == ("erniekit", FOREIGN)
    done = browser.post("/new/import", data={"text": FOREIGN}).json()
    made = yaml.safe_load(done["text"])
    assert (made["model"], made["method"]["name"], made["adapter"]["name"]) == ({"path": "./model"}, "sft", "lora")
    assert "run" not in made  # the page says where it writes
    assert "# model_name_or_path" in done["text"]
    assert "fine_tuning" in done["html"]
    assert "adapter.name: lora" in done["html"]
    assert not list((home / "runs/.web/drafts").iterdir())
    assert browser.post("/new/check", data={"text": done["text"]}).json()["errors"] == {}


def test_what_cannot_be_converted_says_why(browser, site, home, monkeypatch):
    unknown = FOREIGN + "max_stepz: 3\n"
    done = browser.post("/new/import", data={"text": unknown}).json()
    assert not done["text"]
    assert "max_stepz" in json.dumps(done)
    done = browser.post("/new/import", data={"text": unknown, "without_unknown": "true"}).json()
    assert yaml.safe_load(done["text"])["train"]["max_steps"] == 10
    monkeypatch.setattr(site.actions, "asked", lambda *a: pytest.fail("a command saw it"))
    for text in (FOREIGN + "dataset_dir: /etc\n", "a: [", "model: {path: x}", FOREIGN + "x: ../../y\n"):
        done = browser.post("/new/import", data={"text": text}).json()
        assert not done["text"]
        assert done["general"][0]["code"] == "ERN-C001"


def test_the_first_model_offered_is_the_newest_that_can_be_trained(site, home):
    def model(name, when, tokenizer=True, manifest=None, **config):
        folder = home / "models" / name
        folder.mkdir(parents=True)
        (folder / "model.safetensors").touch()
        (folder / "config.json").write_text(json.dumps({"model_type": "ernie4_5", **config}))
        if tokenizer:
            (folder / "tokenizer.json").touch()
        (folder / "erniecore_manifest.json").write_text(json.dumps({"provenance": manifest or {}}))
        os.utime(folder / "config.json", (when, when))

    ours = {"quant_method": "erniecore"}
    model("old", 10**9)
    model("new", 2 * 10**9)
    model("export", 3 * 10**9, manifest={"layout": "structured"})
    model("bare", 3 * 10**9, tokenizer=False)
    model("strange", 3 * 10**9, model_type="nobody")
    model("wint8", 3 * 10**9 + 1, quantization_config={**ours, "quantizer": "wint8"})
    model("theirs", 3 * 10**9, quantization_config={"quant_method": "fp8"})
    site.models.forget()
    last = [place for place in offered(site.models, with_adapter=False) if "models/" in place]
    assert last[:3] == ["models/new", "models/old", "models/theirs"]
    assert "models/wint8" in last
    assert not {"models/export", "models/bare", "models/strange"} & set(last)
    assert offered(site.models, with_adapter=True)[0] == "models/new"
    assert (trains(home / "models/export", 0), trains(home / "models/wint8", 0)) == ("", "adapter")


def test_changes_that_would_fit_are_offered_for_one_click(browser, home):
    text = "model: {path: model}\nmethod: sft\ndata: {train: [rows.jsonl], max_seq_len: 96}\ntrain: {batch_size: 4}  # mine\n"
    page = browser.post("/new/check", data={"text": text}).json()
    (first, *rest) = [applied.split("\n") for applied in re.findall(r'data-apply="([^"]*)"', page["plan"])]
    assert page["count"]
    assert rest
    assert "fits here" in page["plan"]
    changes = [setting.split("=", 1) for setting in first]
    after = browser.post("/new/check", data={"text": text, "changes": json.dumps(changes)}).json()
    assert all(after["values"][key] == value for key, value in changes)
    assert "# mine" in after["text"]
    assert after["errors"] == {}
    kind = browser.post(
        "/new/check", data={"text": text, "changes": '[["adapter", "lora"], ["quantizer", "wint8"]]'}
    ).json()
    assert (kind["values"]["adapter.name"], kind["values"]["quantizer.name"], kind["errors"]) == ("lora", "wint8", {})
    counted = browser.post("/new/steps", data={"text": text}).json()["plan"]
    assert "<b>2</b><small>counted from the epochs" in counted  # as the run says


def test_a_plan_that_does_not_fit_says_what_would(monkeypatch):
    monkeypatch.setattr(draft_plan, "accelerator_memory", lambda device, moment=0: 50)
    row = {"settings": ["train.recompute=full"], "peak_memory": 40, "process_memory": 400}
    plan = {
        "device": "cuda",
        "estimate": {"peak_memory": 60, "process_memory": 600},
        "smaller": [row, {**row, "peak_memory": 55}],
    }
    needs = needs_of(plan)
    assert (needs.too_much, [change.fits for change in needs.smaller]) == (True, [True, False])
    monkeypatch.setattr(draft_plan, "accelerator_memory", lambda device, moment=0: None)
    assert [change.fits for change in needs_of(plan).smaller] == [None, None]
    assert not needs_of({"device": "cuda"}).too_much


def test_layouts_over_accelerators_are_offered_and_applied(browser, site, home, monkeypatch):
    text = "model: {name: ernie45, size: 0.3b, tokenizer: model}\nmethod: sft\ndevice: cuda\n"
    found = browser.post("/new/layouts", data={"text": text, "number": "2", "kind": "H100"}).json()
    assert found["general"] == []
    applied = found["html"].partition('data-apply="')[2].partition('"')[0].split("\n")
    assert applied[0] == "parallel.name=hybrid"
    changes = json.dumps([*(one.split("=", 1) for one in applied), ["parallel.tensor", "2"]])
    monkeypatch.setattr(site.actions, "asked", lambda *a: Result(0, '{"parameters": {}}'))
    after = browser.post("/new/check", data={"text": text, "changes": changes}).json()
    assert (
        yaml.safe_load(after["text"])["parallel"]["tensor"] == 2
    )  # a key of the plugin that the first change has chosen
    monkeypatch.setattr(site.actions, "asked", lambda *a: pytest.fail("a command saw it"))
    for number, kind in (("0", "H100"), ("x", "H100"), ("2", "--json"), ("2", ""), ("1000000", "H100")):
        (told,) = browser.post("/new/layouts", data={"text": text, "number": number, "kind": kind}).json()["general"]
        assert told["code"] == "ERN-C001"


def test_memory_of_accelerators_is_what_their_tool_says(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf '81559\\n40960\\n'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert accelerator_memory("cuda", 1) == 40960 << 20
    tool.write_text("#!/bin/sh\necho '[N/A]'\n")
    assert accelerator_memory("cuda", 2) is None
    assert accelerator_memory("xpu", 3) is None


@pytest.mark.parametrize(("packing", "epochs", "batch", "expected"), [
    ("greedy", 2.0, 1, 14), ("none", 1.0, 4, 3), ("none", 3.0, 4, 8), ("padding-free", 1.0, 4, 3),
])  # fmt: skip
def test_steps_of_epochs_are_counted_from_the_rows(site, home, monkeypatch, packing, epochs, batch, expected):
    """Ten samples with 484 tokens; packed greedily into seven sequences of 96."""
    tokens = {"samples": 10, "tokens": 484, "fill_rate": {"greedy": 484 / (7 * 96), "none": 484 / 960}}
    calls = []
    monkeypatch.setattr(site.actions, "asked", lambda *a: calls.append(a) or Result(0, json.dumps({"tokens": tokens})))
    text = f"data: {{train: [rows.jsonl], packing: {packing}}}\ntrain: {{batch_size: {batch}}}\n"
    plan = {"tokens_per_step": 96 * batch, "estimate": {"sequence_length": 96}}
    assert steps_from_epochs(site, text, plan, epochs) == expected
    assert steps_from_epochs(site, text + "run: {seed: 3}\n", plan, epochs) == expected
    assert len(calls) == 1  # rows are tokenized again only where they or their settings change
    assert "train." not in " ".join(calls[0])
    (home / "rows.jsonl").write_bytes(b"x" * (17 << 20))
    assert steps_from_epochs(site, text, plan, epochs) is None
    assert steps_from_epochs(site, "data: {train: [lost.jsonl]}\n", plan, epochs) is None


def test_every_code_of_the_command_has_its_reference(browser):
    codes = all_codes()
    assert {"ERN-C010", "ERN-K020", "ERN-D010", "ERN-P002"} <= codes.keys()
    assert all(code.meaning for code in codes.values())
    assert (codes["ERN-P002"].exit, codes["ERN-C021"].exit) == (2, None)
    page = browser.get("/errors").text
    assert all(f'id="{name}"' in page for name in codes)
    assert codes["ERN-P002"].meaning.rstrip(".") in browser.get("/errors/ERN-P002").text
    assert browser.get("/errors/ERN-X999").status_code == 404
