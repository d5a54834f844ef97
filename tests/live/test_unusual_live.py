"""Unusual models and loops under the executor, of two and three ranks on gloo: they train as under DDP, bit by bit."""

from __future__ import annotations

import os

import pytest

from tests.live import launching

if os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    import torch  # noqa: F401
else:
    pytest.importorskip("torch", reason="torch is not installed: pip install torch")

pytestmark = pytest.mark.live
GROUPS = {"memory": 4 * 5, "ends": 51, "loops": 67}
"""{group of cases: how many there are, each under each plan}"""
TURNS = {"turns": 36}
"""Each case of all groups under one plan, with each of the plans."""
REFUSED = {
    "reformatted": (
        "UsageError: '1.weight' has shape, type and strides ((3, 2, 2, 2), 'float32', (8, 1, 4, 2)), and had "
        "((3, 2, 2, 2), 'float32', (8, 4, 2, 1)) at execute(): convert the model before"
    ),
    "lazy": "UsageError: rank 0: the parameter '1.weight' has no shape yet: run one forward on every rank before",
    "expanded": "UsageError: rank 0: elements of the parameter 'last.bias' share memory",
    "unfolded": "UsageError: rank 0: elements of the parameter 'last.extra' share memory",
    "meta": "UsageError: rank 0: the buffer 'extra' has no values",
    "sparse": "UsageError: rank 0: the buffer 'extra' is sparse",
    "sizes": (
        "PlanError: rank 1 has a model different from rank 0's (the buffer 'extra', float32 of (3,); on rank 0 the "
        "buffer 'extra', float32 of (2,)): give all ranks the same"
    ),
    "absent": (
        "PlanError: rank 1 has a model different from rank 0's (the buffer 'extra', float32 of (2,); on rank 0 "
        "nothing more)"
    ),
    "shared": "UsageError: 'middle.bias' got a second gradient in one backward, as where reentrant checkpoints share",
    "copied": "ValueError: UsageError: the model is copied or saved as a whole while forward overlap puts updates off",
}


@pytest.mark.parametrize(
    ("groups", "world"),
    [
        pytest.param(groups, world, marks=[pytest.mark.long] * (groups is GROUPS or world == 3), id=f"{name}-{world}")
        for name, groups in (("turns", TURNS), ("all", GROUPS))
        for world in (2, 3)
    ],
)
def test_they_train_as_under_ddp(groups, world):
    """Every day each case under one plan, on two ranks."""
    ranks = launching.found("tests.live.unusual", tuple(groups), world)
    for group, count in groups.items():
        assert_same(ranks, group, count)
    assert len({case.rpartition(": ")[2] for group in groups for case in ranks[0][group]}) == 6


def assert_same(ranks, group, count):
    """No parameter and no buffer differs from that under DDP, on any rank."""
    for rank in ranks:
        assert len(rank[group]) == count
        assert {case: said for case, said in rank[group].items() if said} == {}


def test_models_that_cannot_be_trained_are_named():
    """The model, what of it, and what to do, on every rank."""
    for rank in launching.found("tests.live.unusual", ("refused",), 2):
        assert set(rank["refused"]) == set(REFUSED)
        for what, words in REFUSED.items():
            assert rank["refused"][what].startswith(words)
