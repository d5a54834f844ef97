"""Sparse plans, and plans of osf tune --memory, on emulated hosts: what was reached."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from benchmarks import live_memory, live_sparse, shared_cores
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.ledger.sources import emulated_ddp
from tests.conftest import ROOT
from tests.ledger.pages import on_page


@pytest.fixture(scope="module")
def groups():
    return live_sparse.groups()


def errors(groups, sparse, workers=None):
    return [
        abs(turns.error)
        for group in groups
        for turns in group.turns
        if turns.steady and live_sparse.sparse(turns) == sparse and workers in (None, group.workers)
    ]


def test_sparse_plans_take_as_long_as_predicted(groups):
    """Within 12 % on hosts with a core each; the aim over all cells was a median of 5 % and 15 % at worst."""
    alone, every = errors(groups, True, 2), errors(groups, True)
    assert len(alone) >= 8
    assert median(alone) <= 0.01
    assert max(alone) <= 0.03
    assert median(every) <= 0.05
    assert max(every) <= 0.161  # four hosts on two cores


def test_dense_plans_beside_them_do(groups):
    found = errors(groups, False)
    assert len(found) >= 12
    assert median(found) <= 0.01
    assert max(found) <= 0.025


def test_whether_sparse_pays_is_predicted(groups):
    """Over the best dense plan, wherever either is more than 2 %."""
    seen = set()
    for group in groups:
        best = min((turns for turns in group.turns if not live_sparse.sparse(turns)), key=lambda turns: turns.measured)
        for turns in group.turns:
            promised, gained = 1 - turns.predicted / best.predicted, 1 - turns.measured / best.measured
            if live_sparse.sparse(turns) and max(abs(promised), abs(gained)) > 0.02:
                assert (promised > 0) == (gained > 0)
                seen.add(gained > 0)
    assert seen == {True, False}


def test_ranks_with_cores_of_their_own_take_as_long_as_predicted(groups):
    """The simulation of shared cores is the prediction where none are shared, and slower on fewer cores."""
    runs = {(run.workload, run.cluster, run.plan): run for run in load_measurements("emulated-sparse")}
    group = groups[-1]
    assert group.workers == 4
    for turns in list(filter(live_sparse.sparse, group.turns))[::3]:
        job = shared_cores.Job.of(runs[group.workload, group.cluster, turns.plan])
        own = shared_cores.Machine(job, group.workers, 0.0).step_time()
        assert own == pytest.approx(turns.predicted, rel=0.01)
        assert shared_cores.Machine(job, live_sparse.CORES, 0.1).step_time() > 1.02 * own


def test_choosing_entries_is_what_makes_the_difference():
    """Without what it takes, predictions are too fast by far."""
    runs = [run for run in load_measurements("emulated-sparse") if ":sparse:" in run.plan]

    def free(pricing):
        effects = pricing.effects
        return replace(
            pricing,
            effects=replace(effects, select=0, select_sent=0, select_time=0, spread=0, spread_time=0),
        )

    assert median(row.error for row in emulated_ddp.judge(runs, free).rows) < -0.15


def test_throughput_within_a_limit_grows_as_promised():
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in live_memory.show()][2:]
    assert len(rows) == 6
    for *_, error, promised, gained in rows:
        assert abs(float(error.rstrip("%"))) <= 1.5
        if gained:
            assert float(gained.rstrip("%")) >= float(promised.rstrip("%")) - 1.5
    assert float(rows[1][-1].rstrip("%")) >= 150


def test_the_pages_have_what_the_commands_print():
    for page, lines in (("sparse", live_sparse.show().splitlines()), ("memory", live_memory.show())):
        said = (ROOT / f"docs/ledger/emulated-{page}.md").read_text(encoding="utf-8").splitlines()
        assert [line for line in on_page(lines) if line not in said] == []
