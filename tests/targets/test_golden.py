"""The lines that users paste, to the letter."""

from __future__ import annotations

import pytest

from tests.targets.golden import FOLDER, NAMES, text


@pytest.mark.parametrize("name", NAMES)
def test_the_lines_are_those_kept(name):
    assert text(name) == (FOLDER / f"{name}.txt").read_text(encoding="utf-8"), "python -m tests.targets.golden"


def test_the_lines_of_all_targets_as_of_2026_are_kept():
    """A file that is lost would be no failure above; new targets need none."""
    kept = {"accelerate", "byteps", "ddp", "deepspeed", "fsdp2", "horovod", "lightning", "megatron"}
    assert kept <= set(NAMES)
