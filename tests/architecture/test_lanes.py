"""Whether a test is of `make test-runs` follows from its path, wherever it is."""

from pathlib import Path

from lanes import RUNS

ROOT = Path(__file__).parents[2]


def test_every_path_of_the_lane_has_tests():
    found = {
        path.relative_to(ROOT).as_posix()
        for place in ("tests", "plugins")
        for path in (ROOT / place).rglob("test_*.py")
    }
    assert not [start for start in RUNS if not any(name.startswith(start) for name in found)]


def test_the_tests_of_this_session_are_in_the_lane_of_their_path(request):
    """Of all tests that were chosen, also those of plugins, to whose files the hooks of another directory do not apply."""
    marked = {item.nodeid for item in request.session.items if item.get_closest_marker("runs")}
    assert marked == {item.nodeid for item in request.session.items if item.nodeid.startswith(RUNS)}


def test_what_is_left_out_of_all_tests_is_left_out_of_those_of_a_plugin_alone(pytestconfig):
    """Hooks of tests/ would not be there for ``pytest plugins/…``: what is marked `combination` would run."""
    hooks = pytestconfig.hook.pytest_collection_modifyitems.get_hookimpls()
    places = {Path(getattr(hook.plugin, "__file__", "")).resolve() for hook in hooks}
    assert ROOT / "conftest.py" in places
    assert not [place for place in places if ROOT / "tests" in place.parents]
