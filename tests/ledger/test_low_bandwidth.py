"""Horovod on slow links: what comes of the bandwidth alone, with nothing fitted."""

from __future__ import annotations

import numpy as np
import pytest

from osfmodel.entities.compression import compressed
from osfmodel.entities.files import profiles
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.ledger.sources import low_bandwidth

RUNS = load_measurements("horovod-lowbandwidth")


@pytest.fixture(scope="module")
def rows():
    return low_bandwidth.judge(RUNS).rows


def test_errors_are_those_reached(rows):
    found = {model: [] for model in ("resnet50-v100", "vgg16-reconstructed")}
    for row, run in zip(rows, RUNS, strict=True):
        if row.predicted is not None and not row.fitted:
            found[run.workload].append(row.error)
    assert [len(errors) for errors in found.values()] == [4, 4]
    assert np.median(np.abs([*found["resnet50-v100"], *found["vgg16-reconstructed"]])) <= 0.089
    assert max(found["resnet50-v100"]) <= 0.23
    assert max(found["vgg16-reconstructed"]) <= 0.081


def test_nothing_is_fitted_but_computing_alone(rows):
    for row, run in zip(rows, RUNS, strict=True):
        assert row.fitted == (run.workers == 1)
        if row.fitted:
            assert row.error == pytest.approx(0, abs=1e-12)


def test_runs_with_missing_conditions_are_listed(rows):
    notes = {run.condition("setup"): row.note for row, run in zip(rows, RUNS, strict=True) if row.predicted is None}
    assert set(notes) == {"1 node 4 GPUs", "4x1 5 Gb/s autotune"}


def test_a_ring_of_four_sends_half_as_much_again():
    cost = low_bandwidth.cost_between(4, "4 nodes x1 GPU 2.5 Gb/s")
    assert cost(10**9) == pytest.approx(1.5 * 10**9 / (2.5e9 / 8) + 6 * 50e-6)


def test_half_precision_halves_the_message_and_not_the_time():
    workload = profiles.load_workload("resnet50-v100")
    half = compressed(workload, "fp16")
    assert 2 * half.gradient_bytes == workload.gradient_bytes
    assert half.compute_time == workload.compute_time
