"""The examples of single names in the reference are sessions of Python: executed here, module by module, in one process."""

import doctest
import importlib
import shutil
import sys
from pathlib import Path

import pytest
from talker import talker as talker  # the fixture

import erniecore

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
api_pages = importlib.import_module("api_pages")
sys.path.remove(str(ROOT / "docs"))
MODULES = sorted(path.stem for path in api_pages.SESSIONS.glob("*.txt"))


@pytest.mark.parametrize("module", MODULES)
def test_examples_do_what_they_show(module, talker, tmp_path, monkeypatch):
    shutil.copytree(talker / "model", tmp_path / "base")
    shutil.copy(talker / "rows.jsonl", tmp_path / "train.jsonl")
    monkeypatch.chdir(tmp_path)
    public = importlib.import_module(module)
    examples = api_pages.sessions(module)
    assert set(examples) <= set(public.__all__)
    globs, report = {}, []
    runner, parser = (
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE),
        doctest.DocTestParser(),
    )
    for name, text in examples.items():
        session = parser.get_doctest(text, globs, f"{module}.{name}", str(api_pages.SESSIONS / f"{module}.txt"), 0)
        assert session.examples, f"{module}.{name} has no example"
        result = runner.run(session, out=report.append, clear_globs=False)
        globs.update(session.globs)
        assert not result.failed, "".join(report)


def test_every_name_of_the_package_has_an_example():
    assert set(api_pages.sessions("erniecore")) == set(erniecore.__all__) - {"__version__"}


def test_every_function_and_class_that_is_called_has_an_example():
    """Of its own, or in the plugin with which its page begins. Types, protocols and constants say that they are."""
    missing = []
    for layer in ("", *api_pages.layers()):
        module = importlib.import_module(f"erniecore.api.{layer}".rstrip("."))
        names = set(module.__all__) - set(api_pages.sessions(module.__name__))
        called = [name for name in sorted(names) if not api_pages.explained(getattr(module, name))]
        missing += [f"{module.__name__}.{name}" for name in called if not api_pages.shown_above(layer, name)]
    assert not missing
