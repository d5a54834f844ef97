"""Unusual training loops under the executor: trained as with DDP, or refused by name. gloo, two and three processes."""

from __future__ import annotations

import os

import pytest

from tests.live import launching

if os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

pytestmark = pytest.mark.live
LOST = "JobError: lost another worker"


@pytest.mark.parametrize(
    ("world", "most", "name"),
    [(2, 0.0, "loops"), (3, 1e-9, "turns"), pytest.param(3, 1e-9, "loops", marks=pytest.mark.long)],
)
def test_unusual_loops_train_as_with_ddp_or_are_refused_by_name(world, most, name):
    """Bitwise with two ranks; with three, sums are made in another order, of numbers in float64."""
    from tests.live.looping import expected

    ranks = [rank[name] for rank in launching.found("tests.live.looping", (name,), world)]
    wrong = {}
    for case, (words, raced) in expected(name == "turns").items():
        found = [rank.pop(case) for rank in ranks]
        refused = any(str(one).startswith(words) for one in found)
        refused = refused and all(str(one).startswith((*words, LOST)) for one in found)
        right = all(isinstance(one, float) and 0 <= one <= most for one in found)
        if not (refused or (right and (raced or not words))):
            wrong[case] = found
    assert wrong == {}
    assert ranks == [{}] * world
