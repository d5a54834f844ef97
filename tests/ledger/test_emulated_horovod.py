"""Horovod on emulated hosts: what the kept runs show, held at what was reached."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from benchmarks import live_horovod
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.ledger.check import side_by_side
from osfmodel.ledger.sources import emulated_ddp

NOISE = 0.01


@pytest.fixture(scope="module")
def runs():
    return load_measurements("emulated-horovod")


@pytest.fixture(scope="module")
def groups(runs):
    return side_by_side(runs, emulated_ddp.judge(runs).rows)


def beside_tuner(group):
    return dict(group.conditions).get("set") == live_horovod.BESIDE_TUNER


def test_the_grid_is_there(groups):
    """Six thresholds, three cycle times and ours, at two rates; ResNet-50 at the faster one only, as the page says."""
    found = {(group.workload, group.cluster): {turns.plan for turns in group.turns} for group in groups
             if not beside_tuner(group)}  # fmt: skip
    wanted = {(setting.workload, setting.cluster) for setting in live_horovod.settings()}
    assert wanted - set(found) == {("resnet50-v100", "emulated-horovod-4x1gbit")}
    assert list(found.values()) == [set(live_horovod.plans())] * 3
    assert len(live_horovod.plans()) == 19


def test_errors_are_those_reached(groups):
    """The aim was 4 % and 8.4 %, which is the range that OSF states."""
    errors = [abs(turns.error) for group in groups for turns in group.turns if turns.steady]
    assert len(errors) == 3 * 19 + 3
    assert median(errors) <= 0.01
    assert max(errors) <= 0.055


def test_nothing_is_fitted_to_the_runs(runs):
    """Twice the measured times give the same predictions, and the settings are those that each run states."""
    slower = [replace(run, samples=tuple(2 * sample for sample in run.samples)) for run in runs[:6]]
    before, after = (emulated_ddp.judge(some).rows for some in (runs[:6], slower))
    assert [row.predicted for row in before] == [row.predicted for row in after]
    other = replace(runs[0], conditions=tuple(
        (name, "0B,20ms") if name == "settings" else (name, value) for name, value in runs[0].conditions
    ))  # fmt: skip
    assert emulated_ddp.judge([other]).rows[0].predicted != before[0].predicted


def test_the_recommended_plan_is_never_slower(groups):
    """Than the default, and than what Horovod's tuner found, by more than 1 % or the spread of either."""
    judged = 0
    for group in groups:
        found = {turns.plan: turns for turns in group.turns}
        ours = found["horovod:best"]
        rivals = [group.default]
        if beside_tuner(group):
            rivals += [turns for name, turns in found.items() if name not in ("horovod", "horovod:best")]
        for rival in rivals:
            judged += 1
            assert ours.measured / rival.measured - 1 <= max(NOISE, ours.spread, rival.spread)
    assert judged >= 3


def test_horovods_tuner_took_live_steps(groups):
    logs = [live_horovod.logged(group) for group in groups if beside_tuner(group)]
    assert logs
    for log in logs:
        assert log.converged is not None
        assert log.steps() > 1000
