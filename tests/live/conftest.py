"""Tests that measure times want the machine to themselves."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests marked ``alone`` where others run at the same time."""
    if hasattr(config, "workerinput"):  # one of several workers of pytest-xdist
        busy = pytest.mark.skip(reason="needs the machine to itself: python -m pytest tests/live -m alone")
        for item in items:
            if item.get_closest_marker("alone"):
                item.add_marker(busy)
