"""The lines that users paste, to the letter."""

from __future__ import annotations

import pytest

from tests.targets.golden import FOLDER, NAMES, text


@pytest.mark.parametrize("name", NAMES)
def test_the_lines_are_those_kept(name):
    assert text(name) == (FOLDER / f"{name}.txt").read_text(encoding="utf-8"), "python -m tests.targets.golden"


def test_every_file_kept_is_of_a_target():
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(NAMES)
