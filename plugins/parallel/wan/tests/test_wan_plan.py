"""`ernie wan plan`: its formulas against known figures, and the command as users call it."""

import json

import pytest
from erniecore_wan.planning import SiteEntry, options, recommended, sites_of
from event_runs import ernie as ernie  # the fixture

FAST = {"up": 1000, "down": 1000, "delay": 0.0}


def sites(count=2, step=1.0, **link):
    return sites_of({f"s{i}": SiteEntry(**{**FAST, **link}) for i in range(count)}, step)


def by_name(found):
    return {one.name: one for one in found}


def test_a_billion_parameters_over_a_gigabit_have_the_published_utilizations():
    found = by_name(options(10**9, sites(), overhead=0.5, cap=500))
    assert found["synchronous"].used == pytest.approx(0.0154, abs=1e-4)  # 1 s a step, 64 s for both directions
    assert found["DiLoCo, float32"].interval == 64
    at_500 = by_name(options(10**9, sites(), overhead=0.001, cap=500))["DiLoCo, float32"]
    assert at_500.used == pytest.approx(0.886, abs=1e-3)
    sparse = by_name(options(10**9, sites(), overhead=0.02, cap=500))["SparseLoCo, k = 64"]
    assert sparse.interval <= 30
    assert sparse.used >= 0.98


def test_eight_billion_parameters_over_the_published_links_compute_94_percent_of_the_time():
    """Links of Covenant-72B's peers (arXiv:2603.08163), 110 Mbit/s up and 500 down; they report 94.5 %."""
    links = sites(step=9.0, up=110, down=500, delay=0.05)
    found = by_name(options(8 * 10**9, links, overhead=0.06, cap=500))["SparseLoCo, k = 64"]
    assert found.used >= 0.94
    assert found.interval * 9 < 6 * 60  # the published interval for this size is 4.5 minutes: 93 %
    assert found.seconds == pytest.approx(20.2, abs=0.2)


def test_more_sites_receive_more_unless_updates_are_masked():
    two, five = (by_name(options(10**8, sites(n), overhead=0.1, cap=500)) for n in (2, 5))
    assert five["DiLoCo, float32"].received == 4 * two["DiLoCo, float32"].received
    assert five["DiLoCo, masked"].received == two["DiLoCo, masked"].received
    assert five["DiLoCo, masked"].seconds < five["DiLoCo, float32"].seconds


def test_streaming_hides_what_passes_while_training_goes_on():
    found = by_name(options(10**8, sites(), overhead=0.1, cap=500))
    assert found["streaming, float32"].used == 1.0
    assert found["streaming, float32"].settings["overlap"] >= found["streaming, float32"].seconds


def test_the_slowest_link_decides_and_fast_sites_make_more_steps():
    mixed = sites_of(
        {"east": SiteEntry(**FAST, step_seconds=1.0), "west": SiteEntry(up=10, down=10, delay=0.1, step_seconds=3.0)}, 0
    )
    settings, reason = recommended(10**8, mixed, overhead=0.1, cap=100)
    assert settings["form"] == "sparse"
    assert settings["interval"]["east"] == 3 * settings["interval"]["west"]
    assert "10% overhead" in reason
    easy, _ = recommended(10**6, mixed, overhead=0.1, cap=100)
    assert easy["form"] == "float32"


def test_the_command_takes_the_arguments_of_a_run(tmp_path, ernie):
    (tmp_path / "sites.yaml").write_text("sites:\n  a: {up: 110, down: 500}\n  b: {up: 110, down: 500}\n")
    words = ["wan", "plan", "--sites", str(tmp_path / "sites.yaml"), "--step-seconds", "2", "--json"]
    code, out, err = ernie(*words, "--model", "ernie45", "model.size=0.3b", "--method", "pt")
    assert code == 0, err
    found = json.loads(out)
    assert found["parameters"] == 360748032
    assert set(found["recommended"]["interval"]) == {"a", "b"}
    _, text, _ = ernie(*words[:-1], "--parameters", "1e9")
    assert "recommended: parallel.form=" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("sites: {a: {up: 1, down: 1}}", "at least two"),
        ("sites: {a: {up: 1, donw: 1}, b: {up: 1, down: 1}}", "did you mean"),
        ("sites: {a: {up: 0, down: 1}, b: {up: 1, down: 1}}", "up"),
        ("sites: {a: {up: 1, down: 1}, b: {up: 1, down: 1}}", "how long is a step"),
        ("- 1", "must be a mapping"),
    ],
)
def test_files_that_say_too_little_are_refused(tmp_path, ernie, content, found):
    (tmp_path / "sites.yaml").write_text(content)
    code, _, err = ernie("wan", "plan", "--sites", tmp_path / "sites.yaml", "--parameters", "1e9")
    assert code == 2
    assert found in err
