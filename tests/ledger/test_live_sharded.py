"""Sharded emulated settings: what a seed draws, the plans of a setting, and the verdict on measured cells."""

from __future__ import annotations

import sys

import pytest

from osfmodel import Cluster, Measurement, Table
from osfmodel.engine import predict_timeline
from osfmodel.entities.files import profiles
from osfmodel.entities.files.measurements import save_measurements
from osfmodel.entities.files.notation import written
from osfmodel.entities.modules import blocks
from tests.conftest import ROOT

pytest.importorskip("torch", reason="torch is not installed: pip install torch")
sys.path.insert(0, str(ROOT / "benchmarks"))
import live_sharded
from live_sharded import Setting


def test_a_seed_draws_the_same_settings_of_all_ranks_and_rates():
    settings = live_sharded.drawn(live_sharded.SEED)
    assert settings == live_sharded.drawn(live_sharded.SEED) != live_sharded.drawn(1)
    assert len(set(settings)) == len(settings)
    assert 4 * len(settings) >= 60
    assert {setting.workers for setting in settings} == {2, 3, 4, 6, 8}
    assert {setting.rate for setting in settings} == set(live_sharded.RATES)
    assert {setting.model for setting in settings} == set(live_sharded.MODELS)


def measured(folder, setting, factor):
    """The plans of a setting, each with two runs of ``factor`` (name) times the predicted seconds."""
    kinds = ("all_reduce", "reduce_scatter", "all_gather")
    tables = tuple(Table(setting.workers, (1 << 10, 1 << 24), (1e-3, 0.4), kind) for kind in kinds)
    cluster = folder / f"{setting.network}-replay.json"
    profiles.save(Cluster("made", "tabulated", tables=tables, in_flight=2, library="gloo"), cluster)
    workload = live_sharded.replay_of(setting)
    profiles.save(workload, folder / f"{setting.name}-workload.json")
    pricing, runs, plans = live_sharded.pricing_for(setting, cluster), [], {}
    for name, plan in live_sharded.plans_of(workload, pricing):
        plans[name] = plan
        time = factor(name) * predict_timeline(workload, plan, pricing).iteration_time
        stated = (("cpu_share", "0.5"), ("sent", written(plan, workload)), ("buckets_as_planned", "yes"))
        stated += (("collectives", "3 all_gather, 2 reduce_scatter"),)
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
    assert all(cell.counts and cell.as_planned for cell in cells)
    said = "\n".join(live_sharded.show(tmp_path, [setting, Setting(2, 400, "even")]))
    assert "all: 4 cells, median |error| 10.00%, worst 20.00%; 0 with busy cores, 0 not steady" in said
    assert f"slower than one per block by more than 1 % and the spread: {setting.name} planned-blocking (" in said
    assert "not measured: 2x400mbit-even-real" in said
