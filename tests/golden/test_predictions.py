"""Predictions are what they were: a sample of the rows that ``python -m tests.golden.predictions`` compares in full."""

from __future__ import annotations

import json
import random

import pytest

from tests.golden import predictions

FORMED, SEARCHED = 150, {"optimal": 12}
"""Rows of plans that are formed in milliseconds, and rows of a plan that is searched, of which others have one."""
FEW = 60
"""Tensors of the workloads for which plans are searched here: some searches of more take seconds."""


SEARCHED_PLANS = ("optimal", *predictions.SEARCHED)


@pytest.fixture(scope="module")
def kept():
    return predictions.kept()


def test_a_sample_of_predictions_is_unchanged(kept):
    asked = {predictions.key(question): question for question in predictions.questions()}
    assert len(kept) > 5_000
    assert kept.keys() <= asked.keys()
    searched = {name: [row for row in sorted(kept) if row.split("|")[3] == name] for name in SEARCHED_PLANS}
    formed = sorted(kept.keys() - {row for rows in searched.values() for row in rows})
    draw = random.Random(7)
    chosen = draw.sample(formed, FORMED)
    for name, rows in searched.items():
        few = [row for row in rows if len(predictions.workload(row.split("|")[0]).gradients) <= FEW]
        chosen += draw.sample(few, SEARCHED.get(name, 1))
    found = {name: json.loads(json.dumps(predictions.answer(asked[name]))) for name in chosen}
    other = {name: row for name, row in found.items() if predictions.differs(kept[name], row)}
    assert {name: row for name, row in other.items() if not predictions.tied(name, kept[name], row)} == {}
    assert len(other) < 0.01 * len(chosen)  # ties that rounding breaks on other machines


def test_the_comparison_can_fail():
    row = [1.0, 0.5, 3, "abc", {"ddp": "10 x"}]
    assert not predictions.differs(row, [1.0 + 1e-13, 0.5, 3, "abc", {"ddp": "10 x"}])
    assert predictions.differs(row, [1.0 + 1e-11, 0.5, 3, "abc", {"ddp": "10 x"}])
    assert predictions.differs(row, [1.0, 0.5, 4, "abc", {"ddp": "10 x"}])
    assert predictions.differs(row, [1.0, 0.5, 3, "abc", {"ddp": "11 x"}])
    assert predictions.differs(row, ["PlanError"])
    assert not predictions.differs(["PlanError"], ["PlanError"])
    other = [1.0, 0.4, 2, "def"]
    assert predictions.tied("w|c|8|optimal||", row, other)
    assert not predictions.tied("w|c|8|ddp||", row, other)
    assert not predictions.tied("w|c|8|optimal||", row, [1.1, *other[1:]])
