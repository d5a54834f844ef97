"""The lines that users paste, to the letter."""

from __future__ import annotations

import pytest

from tests.targets.golden import FOLDER, NAMES, text


@pytest.mark.parametrize("name", NAMES)
def test_the_lines_are_those_kept(name):
    assert text(name) == (FOLDER / f"{name}.txt").read_text(encoding="utf-8"), "python -m tests.targets.golden"
