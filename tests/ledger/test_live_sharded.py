"""Sharded emulated settings: what a seed draws, the plans of a setting, and the verdict on measured cells."""

from __future__ import annotations

import sys

import pytest

from osfmodel import Cluster, Measurement, Table
from osfmodel.engine import predict_timeline
from osfmodel.engine.bands import SHARDED_GLOO, bundled_bands
from osfmodel.entities.files import profiles
from osfmodel.entities.files.measurements import save_measurements
from osfmodel.entities.files.notation import written
from osfmodel.entities.modules import blocks
from tests.conftest import ROOT

pytest.importorskip("torch", reason="torch is not installed: pip install torch")
sys.path.insert(0, str(ROOT / "benchmarks"))
sys.path.insert(0, str(ROOT / "profiles"))
import live_sharded
from live_sharded import Setting
from make_bands import gains, live_pairs


def test_a_seed_draws_the_same_settings_of_all_ranks_and_rates():
    settings = [list(live_sharded.drawn(seed, 60)) for seed in (1, 1, 2)]
    assert settings[0] == settings[1] != settings[2]
    assert len(set(settings[0])) == 60
    assert {setting.workers for setting in settings[0]} == set(live_sharded.WORKERS)
    assert {setting.rate for setting in settings[0]} == set(live_sharded.RATES)
    assert {(setting.model, bool(setting.ratio)) for setting in settings[0]} == {
        (model, replayed) for model in live_sharded.MODELS for replayed in (True, False)
    }
    assert {setting.workers for setting in settings[0] if setting.replicas > 1} == {4, 6}


def measured(folder, setting, factor):
    """The plans of a setting, each with two runs of ``factor`` (name) times the predicted seconds."""
    kinds = ("all_reduce", "reduce_scatter", "all_gather")
    tables = tuple(Table(setting.workers, (1 << 10, 1 << 24), (1e-3, 0.4), kind) for kind in kinds)
    cluster = folder / f"{setting.network}.json"
    profiles.save(Cluster("made", "tabulated", tables=tables, in_flight=2, library="gloo"), cluster)
    workload = live_sharded.replay_of(setting)
    profiles.save(workload, folder / f"{setting.name}-workload.json")
    pricing, runs, plans = live_sharded.pricing_for(setting, cluster), [], {}
    for name, plan in live_sharded.plans_of(workload, pricing, setting.replicas):
        plans[name] = plan
        time = factor(name) * predict_timeline(workload, plan, pricing).iteration_time
        stated = (("cpu_share", "0.5"), ("sent", written(plan, workload)), ("buckets_as_planned", "yes"))
        file = f"{setting.name}-{name}.json"
        runs += [
            Measurement(
                setting.name, cluster.name, file, setting.workers, (time,), conditions=(*stated, ("repeat", one))
            )
            for one in "12"
        ]
    save_measurements("runs", runs, folder / f"{setting.name}-runs.json")
    return workload, plans


def test_cells_are_predicted_from_what_was_measured(tmp_path):
    setting = Setting(4, 800, "tower", 0.8)
    workload, plans = measured(tmp_path, setting, lambda name: 1.25 if name.startswith("planned") else 1.0)
    assert list(plans) == ["per-block-blocking", "planned-blocking", "per-block-overlapping", "planned-overlapping"]
    assert [plan.sharding.asynchronous for plan in plans.values()] == [False, False, True, True]
    assert len(blocks(workload)) == len(plans["per-block-blocking"].buckets) - 1 == 14
    cells = list(live_sharded.cells_of(tmp_path, setting))
    assert [cell.plan for cell in cells] == list(plans)
    assert [cell.error for cell in cells] == pytest.approx([0, -0.2, 0, -0.2])
    assert [cell.spread for cell in cells] == [0] * 4
    found = [live_sharded.gain_of(*pair) for pair in live_sharded.pairs_of(cells)]
    assert [gain.form for gain in found] == ["blocking", "overlapping"]
    assert all(gain.slower and gain.low <= gain.promised <= gain.high for gain in found)
    assert [1 - 1.25 * (1 - gain.promised) for gain in found] == pytest.approx([gain.measured for gain in found])
    said = "\n".join(live_sharded.show(cells))
    assert "| busy cores | 4 | 10.0% | 20.0% | -10.0% |" in said
    assert "| all | 2 | 0 | 0 | +" in said


def test_the_kept_draws_are_what_intervals_and_bands_are_learned_from():
    """Every cell is there, sent what was planned, and is of that kind; no planned groups lost beyond the spread.

    The doubt of gains is what they teach now.
    """
    for seed, cells in live_sharded.kept():
        assert {cell.setting for cell in cells} == set(live_sharded.drawn(seed))
        assert all(run.condition("buckets_as_planned") == "yes" for cell in cells for run in cell.runs)
        rows = [row for cell in cells for row in live_sharded.judged(cell, seed)]
        assert {row.kind for row in rows} == {SHARDED_GLOO}
        assert not any(live_sharded.gain_of(*pair).slower for pair in live_sharded.pairs_of(cells))
    assert bundled_bands().gains[SHARDED_GLOO] == pytest.approx(gains(list(live_pairs()))[SHARDED_GLOO], abs=1e-3)


def test_the_page_is_what_the_kept_draws_say():
    assert live_sharded.PAGE.read_text(encoding="utf-8") == live_sharded.page()
