"""Fixtures that start processes as forks of one that has imported paddle."""

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
