"""A few random subjects for each property; ``python benchmarks/dominance.py`` draws thousands."""

from __future__ import annotations

import pytest

from tests.subjects import PROPERTIES, subjects

SEED = 20261127


@pytest.mark.parametrize("name", PROPERTIES)
def test_holds_for_random_subjects(name):
    found = {one.seed: told for one in subjects(SEED, 6) if (told := list(PROPERTIES[name](one)))}
    assert not found
