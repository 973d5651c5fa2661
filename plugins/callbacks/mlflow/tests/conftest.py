"""What MLflow's database layer warns about is not ours to fix: let that, and only that, pass."""

import pytest

FILTERS = (
    "ignore:.*loader strategy is deprecated.*",
    "ignore::DeprecationWarning:(mlflow|sqlalchemy|alembic|google).*",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.name in ("test_mlflow.py", "test_conformance_mlflow.py"):
            for text in FILTERS:
                item.add_marker(pytest.mark.filterwarnings(text))
