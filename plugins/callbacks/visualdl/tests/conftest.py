"""What VisualDL and its dependencies warn about on current Python is not ours to fix: let that, and only that, pass."""

import pytest

#: old escape sequences (Python 3.12 and later) and old imports, by the module that has them
FILTERS = (
    "ignore::SyntaxWarning:.*(visualdl|baidubce|rarfile|past|future).*",
    "ignore::DeprecationWarning:.*(visualdl|baidubce|rarfile|past|future).*",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.name in ("test_visualdl.py", "test_conformance_visualdl.py"):
            for text in FILTERS:
                item.add_marker(pytest.mark.filterwarnings(text))
