"""DDP between emulated hosts: what was reached, from networks and workloads alone, and what is not counted."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from osfmodel import DataError, Effects, Source
from osfmodel.cost.clusters import load_cluster, pricing_of
from osfmodel.engine import simulate
from osfmodel.entities.files import profiles
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.entities.files.notation import written
from osfmodel.entities.plan import Objective, contiguous_plan
from osfmodel.ledger.check import side_by_side
from osfmodel.ledger.recipe import cell_of
from osfmodel.ledger.results import UNSTEADY
from osfmodel.ledger.sources import emulated_ddp
from tests.conftest import ROOT
from tests.ledger.pages import on_page
from tests.live.cluster import local

sys.path.insert(0, str(ROOT / "benchmarks"))
import live

RUNS = load_measurements("emulated-ddp")


@pytest.fixture(scope="module")
def verdict():
    return emulated_ddp.judge(RUNS)


@pytest.fixture(scope="module")
def cells(verdict):
    return [(group, turns) for group in side_by_side(RUNS, verdict.rows) for turns in group.turns]


def test_errors_are_those_reached(cells):
    errors = [abs(turns.error) for _, turns in cells if turns.steady]
    assert len(errors) >= 120
    assert np.median(errors) <= 0.01
    assert max(errors) <= 0.06


def test_cells_that_kept_the_cores_busy_are_told_by_processor_time_alone(cells):
    """After forward, which sleeps: among four hosts at 5 Gbit/s and eight at 2.5, unless all is sent in one message."""
    busy = [(group, turns) for group, turns in cells if live.busy(turns)]
    assert {group.cluster for group, _ in busy} <= {"emulated-4x5gbit", "emulated-8x2500mbit"}
    assert busy
    for group, turns in cells:
        workload = profiles.load_workload(group.workload).scaled(float(group.scale))
        runs = [run for run in RUNS if run.plan == turns.plan and cell_of(run)[4] == group.conditions]
        shares = [
            float(dict(run.conditions)["cpu_share"]) * run.iteration_time / (run.iteration_time - workload.forward_time)
            for run in runs
            if run.cluster == group.cluster and run.workload == group.workload and "cpu_share" in dict(run.conditions)
        ]
        assert live.busy(turns) == any(share > 0.9 for share in shares)


def test_every_cell_has_as_many_repeats_and_samples_as_the_rule_says(cells):
    assert {turns.repeats for _, turns in cells} == {3}
    assert {len(run.samples) for run in RUNS} == {20}
    assert {run.warm_ups for run in RUNS} == {3}
    assert {turns.steady for _, turns in cells if turns.spread > UNSTEADY} <= {False}
    assert {turns.steady for _, turns in cells if turns.spread <= UNSTEADY and not live.busy(turns)} == {True}


def test_repeats_that_differ_are_listed_and_not_counted():
    """One repeat 6 % slower takes its cell out; its prediction stays."""
    first = RUNS[0]
    cell = [run for run in RUNS if cell_of(run) == cell_of(first)]
    assert len(cell) == 3
    alike = [replace(run, samples=(1.0,)) for run in cell]
    assert [row.status for row in emulated_ddp.judge(alike).rows] == ["predicted"] * 3
    rows = emulated_ddp.judge([*alike[:2], replace(alike[2], samples=(1.06,))]).rows
    assert [row.status for row in rows] == ["unsteady"] * 3
    assert {row.predicted for row in rows} == {emulated_ddp.judge(alike).rows[0].predicted}


def test_what_the_executor_carried_out_is_predicted_from_the_plan_that_it_states():
    """With as many collectives in flight as the plan has channels, and without DDP's copies out of buckets."""
    first = next(run for run in RUNS if "gradient_as_bucket_view" not in dict(run.conditions))
    workload = profiles.load_workload(first.workload).scaled(float(first.condition("scale")))
    plan = contiguous_plan(workload, [5, len(workload.gradients)]).under(Objective(2, forward_overlap=True))
    own = (("executor", "runtime"), ("sent", written(plan, workload)))
    run = replace(first, plan="runtime:own", conditions=first.conditions + own)
    (row,) = emulated_ddp.judge([run]).rows
    cluster = load_cluster(first.cluster)
    pricing = pricing_of(replace(cluster, in_flight=1, effects=Effects()), first.workers)
    assert row.predicted == simulate(workload, plan, pricing).iteration_time
    with pytest.raises(DataError, match="does not state its sent"):
        emulated_ddp.judge([replace(run, conditions=first.conditions + own[:1])])


def test_tuned_is_no_slower_than_the_default(cells):
    """By more than 1 %, or what the default differs from itself."""
    compared = [(group, turns) for group, turns in cells if turns.plan == "optimal" and turns.steady]
    for group, turns in compared:
        assert turns.measured <= group.default.measured * (1 + max(0.01, group.default.spread))
    near = [abs(group.measured_speed_up(turns) - group.predicted_speed_up(turns)) <= 0.03 for group, turns in compared]
    assert sum(near) >= 0.85 * len(near)


@pytest.mark.parametrize("executor", [False, True], ids=live.NAMES.values())
def test_the_page_shows_what_the_command_prints_and_no_more(executor):
    page = (ROOT / f"docs/ledger/{live.NAMES[executor]}.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    shown = [line for line in live.show(executor).splitlines() if line]
    rows = [line for line in shown if line.startswith("|")]
    assert len(rows) > 70
    assert [line for line in page.splitlines() if line.startswith("|")] == on_page(rows)
    assert block.splitlines() == [line for line in shown if not line.startswith("|")]


def test_every_kept_run_is_of_the_grid():
    settings = list(live.settings())
    for run in RUNS:
        setting = live.setting_of(run)
        assert setting in settings
        assert setting.cluster == run.cluster
    beside = replace(RUNS[0], conditions=(*RUNS[0].conditions, ("set", live.SETS[live.EXECUTOR])))
    assert live.setting_of(beside) == live.setting_of(RUNS[0])._replace(how=live.EXECUTOR)


def test_runs_state_the_machine_that_they_were_measured_on(monkeypatch):
    monkeypatch.setattr(live.os, "sched_getaffinity", lambda process: set(range(7)))
    (control,) = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().split()
    assert live.machine_of(local(1)) == f"a machine of 7 cores, default scheduling, TCP {control}"


def test_runs_of_another_origin_state_no_machine(tmp_path):
    setting = live.Setting(4, "1gbit", "googlenet-k80")
    own = live.source_of("a machine of 64 cores")
    for source, said in ((Source("measured with osf run"), live.UNSTATED), (own, "a machine of 64 cores")):
        runs = [replace(RUNS[0], source=source)]
        live.save_measurements("runs", runs, tmp_path / setting.file)
        (run,) = live.kept(tmp_path, [setting])
        assert said in run.source.conditions


@pytest.mark.parametrize("option", ["--keep", "--models", "--tune"])
def test_what_needs_a_folder_says_so(capsys, option):
    with pytest.raises(SystemExit, match="2"):
        live.main([option])
    assert f"{option} needs FOLDER" in capsys.readouterr().err


def test_buckets_that_are_no_runs_of_tensors_are_refused():
    run = RUNS[0]
    conditions = tuple((name, "3 5" if name == "buckets" else value) for name, value in run.conditions)
    with pytest.raises(DataError, match="do not hold consecutive tensors"):
        emulated_ddp.formed(replace(run, conditions=conditions), profiles.load_workload(run.workload))


def test_the_plans_of_the_grid_are_carried_out_on_all_their_channels(monkeypatch):
    """DDP's default runs on as many as DDP has, so that the executor can be held against it."""
    monkeypatch.setattr(live, "OWN", "wfbp")  # whichever it is, and soon found
    setting = live.Setting(4, "1gbit", "transformer-6x256-cpu", live.EXECUTOR)
    plans = dict(live.made_plans(setting, ROOT / "profiles/clusters/emulated-4x1gbit.json"))
    rules = {name: (plan.channels, plan.forward_overlap) for name, plan in plans.items()}
    assert rules.pop("ddp-k2") == (2, False)
    assert rules == {
        f"own-k{k}{'-overlap' if overlap else ''}": (k, overlap) for k in (1, 2, 4) for overlap in (False, True)
    }
    assert len(list(live.executed_settings())) == 12
