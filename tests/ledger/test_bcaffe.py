"""B-Caffe's runs: what is reached, what is not touched by the answer, and that the log is priced as it stands."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

import osfmodel as osf
from osfmodel.cost.clusters import load_cluster
from osfmodel.entities.files import profiles
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.ledger.sources import bcaffe
from tests.ledger.test_leaks import leaks

RUNS = load_measurements("bcaffe")


@pytest.fixture(scope="module")
def rows():
    return bcaffe.judge(RUNS).rows


def predicted(rows):
    return [row for row in rows if row.predicted is not None and not row.fitted]


def test_errors_are_those_reached(rows):
    wfbp = [abs(row.error) for row in predicted(rows) if " wfbp " in row.label]
    assert len(wfbp) == 3
    assert median(wfbp) <= 0.04
    assert max(wfbp) <= 0.085
    errors = [abs(row.error) for row in predicted(rows)]
    assert len(errors) == 9
    assert median(errors) <= 0.045
    assert max(errors) <= 0.085


def test_only_rows_of_one_node_are_fitted_and_resnet_is_listed(rows):
    for row, run in zip(rows, RUNS, strict=True):
        if run.workload == bcaffe.PROFILE:
            assert row.fitted == (run.workers == 1)
        else:
            assert row.predicted is None
            assert "no tensor profile" in row.note


def test_the_leak_test_catches_a_leak():
    def peeking(runs):
        verdict = bcaffe.judge(runs)
        last = verdict.rows[3]
        return verdict._replace(rows=(*verdict.rows[:3], last._replace(predicted=last.measured), *verdict.rows[4:]))

    assert leaks(peeking, RUNS) == [bcaffe.judge(RUNS).rows[3].label]


def test_a_slower_node_alone_is_a_slower_prediction(rows):
    """The rows of one node are not decoration: the compute time comes from them."""
    slower = [replace(run, samples=(run.iteration_time * 1.1,)) if run.workers == 1 else run for run in RUNS]
    assert bcaffe.judge(slower).rows[1].predicted == pytest.approx(rows[1].predicted + 0.0391773, abs=1e-6)


def test_at_two_nodes_all_communication_but_the_last_message_is_hidden(rows):
    """The 36 ms by which the run is longer than on one node are thus not in the all-reduce."""
    alone, pair = rows[0], rows[1]
    assert pair.predicted - alone.predicted == pytest.approx((153 + 298) * 1e-6, abs=1e-6)  # first layer
    assert pair.measured - alone.measured > 0.035


def test_the_log_is_priced_as_it_stands():
    two = osf.cost_of(load_cluster(bcaffe.LOG), 2)
    assert two(4 * 2_097_152) == pytest.approx((14441e-6 + 14563e-6) / 2)
    assert two(4 * 9408) == pytest.approx(298e-6)
    assert osf.cost_of(load_cluster(bcaffe.LOG), 8)(4 * (9408 + 64)) == pytest.approx(1169e-6)


def test_forward_is_what_backward_leaves():
    workload = bcaffe.with_forward(profiles.load_workload(bcaffe.PROFILE), 0.392)
    assert workload.compute_time == pytest.approx(0.392)
    assert (
        workload.backward_time
        == profiles.load_workload(bcaffe.PROFILE).backward_time
        == pytest.approx(0.2018, abs=1e-3)
    )
    assert len(workload.gradients) == 128
    assert workload.gradient_bytes == 4 * 13_379_136
