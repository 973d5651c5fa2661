"""Experiments on papers: pairs of seeds, verdicts, files and pages, on one whose results are known."""

import importlib
import json
from pathlib import Path

import pytest

from benchmarks.intervals import bootstrap, interval
from benchmarks.papers import __main__ as command
from benchmarks.papers.common import Experiment, Found, Results, measure_all, record, write

ROOT = Path(__file__).parents[3]
RUNS = []


def run(arm, seed, steps, out):
    RUNS.append((arm, seed))
    loss = 3 + 0.1 * seed - {"base": 0, "good": 0.2 + 0.01 * (seed % 2), "same": 0.1 * (-1) ** seed}[arm]
    return Found({"loss": loss}, {"loss": [(step, loss + seed) for step in range(steps)]})


def judge(results):
    good = results.compare("good", "base", "loss")
    return good.judged(), f"{good.mean:+.3f}"


FAKE = Experiment(
    name="fake",
    title="Fake",
    question="Is good < base?",
    rule="the interval is below 0",
    size="{steps} steps of nothing.",
    baseline="base",
    arms=("base", "good", "same"),
    measures={"loss": "nats per token"},
    run=run,
    judge=judge,
    axes={"loss": ("step", "loss")},
)


@pytest.fixture
def results(tmp_path):
    RUNS.clear()
    return measure_all(FAKE, 4, 3, tmp_path / "out")


def test_differences_are_paired_by_seed(results, tmp_path):
    good, same = (results.compare(arm, "base", "loss") for arm in ("good", "same"))
    assert good.differences == pytest.approx((-0.21, -0.2, -0.21, -0.2))
    assert (good.judged(), good.judged("higher"), same.judged()) == ("seen", "contrary", "not seen")
    half = interval(good.differences)[1]
    assert half == pytest.approx(3.182 * 0.005 / 3**0.5, rel=1e-3)
    low, high = bootstrap(good.differences)
    assert -0.21 <= low < -0.205 < high <= -0.2
    measure_all(FAKE, 4, 3, tmp_path / "out")
    assert len(RUNS) == 12, "what was measured is not run again"


def test_one_seed_judges_nothing(results):
    one = Results({key: found for key, found in results.runs.items() if key[1] == 1})
    assert one.compare("good", "base", "loss").judged() == "not seen"
    del one.runs["good", 1]
    with pytest.raises(ValueError, match="cannot be paired"):
        one.compare("good", "base", "loss")


def test_the_page_is_made_of_the_file(results, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    papers_page = importlib.import_module("papers_page")
    content = record(FAKE, results, 3)
    home = tmp_path / "docs" / "explanation" / "papers"
    home.mkdir(parents=True)
    for name in ("README", "fake"):
        (home / f"{name}.md").write_text(f"# {name}\n\n{papers_page.START}{papers_page.END}\nend\n")
    file = write(content, tmp_path / "docs" / "data" / "papers")
    assert json.loads(file.read_text())["curves"]["loss"]["base"][0] == [0, 5.75]
    made = {Path(path).name: make() for path, make in papers_page.pages(tmp_path).items()}
    assert sorted(made) == ["README.md", "fake-loss.svg", "fake.md", "fake.svg"]
    assert "| Fake | Is good < base? | *seen* | [fake](fake.md) |" in made["README.md"]
    assert "| good | 3.045 (-0.205; -0.214 … -0.196) |" in made["fake.md"]
    assert "3 steps of nothing. 4 seeds" in made["fake.md"]
    assert made["fake.md"].endswith("\nend\n")
    assert made["fake.svg"].count("<circle") == 2 * (4 + 1)
    assert made["fake-loss.svg"].count("stroke-linecap") == 3


def test_names_are_those_of_modules():
    for name in command.experiments():
        assert command.load(name).name == name
        assert (ROOT / "docs" / "explanation" / "papers" / f"{name}.md").is_file()
    with pytest.raises(SystemExit, match="no experiment is called 'fakes'"):
        command.main(["fakes"])
