"""A tiny model directory that every test may damage, and what loads it in this process."""

import shutil

import pytest
from event_runs import ernie as ernie  # the fixture
from talker import talker as talker  # the fixture


@pytest.fixture
def model(talker, tmp_path):
    """A model directory of this test's own."""
    return shutil.copytree(talker / "model", tmp_path / "model")


@pytest.fixture
def answers(ernie, model):
    """Load the model directory and write one token: exit code, stdout, stderr."""

    def run(*more):
        return ernie("generate", "--model", model, "--prompt", "copy", "--max-new-tokens", "1", *more)

    return run


@pytest.fixture
def loads(model):
    """Load the model directory as commands do, without one: exit code, stdout, stderr."""
    from erniecore.cli.render import error_text
    from erniecore.engine.models.bundles import load_bundle
    from erniecore.errors import ErnieError

    def run():
        try:
            load_bundle(model)
        except ErnieError as error:
            return int(error.exit_code), "", error_text(error)
        return 0, "", ""

    return run
