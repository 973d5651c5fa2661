"""Fixtures that start processes as forks of one that has imported paddle, and spare runs in this one what they would find out
again and again.
"""

import pytest
from erniecore_conformance import processes


@pytest.fixture(scope="session")
def warm():
    """``tests/helpers/warm.py``: commands in processes of their own that need not import paddle."""
    from warm import Warm

    server = Warm()
    yield server
    server.close()


@pytest.fixture(scope="session", autouse=True)
def warm_ranks(warm):
    """Launches of the conformance kit are such forks too; ``test_processes.py`` has one with fresh processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "start", warm.start_code)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_revision():
    """``helpers/revision.py``."""
    from revision import git_revision

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("erniecore.config.resolved.git_revision", git_revision)
        yield
