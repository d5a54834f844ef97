"""PyTorch's DDP benchmark: errors reached, the sign of smaller buckets, and that runs on one GPU are all it knows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from osfmodel.entities.files.measurements import load_measurements
from osfmodel.ledger.sources import pytorch_ddp
from tests.ledger.test_leaks import leaks

RUNS = load_measurements("pytorch-ddp")


@pytest.fixture(scope="module")
def rows():
    return pytorch_ddp.judge(RUNS).rows


def errors(rows):
    return [abs(row.error) for row in rows if not row.fitted]


def test_errors_are_those_reached(rows):
    found = errors(rows)
    assert len(found) == 32
    assert np.median(found) <= 0.039
    assert max(found) <= 0.07


def test_small_buckets_are_slower_on_two_gpus_and_more_as_measured(rows):
    def change(run):
        """Predicted throughput with buckets of 1 MB against 25 MB."""
        times = {
            other.plan: row.predicted
            for other, row in zip(RUNS, rows, strict=True)
            if (other.workload, other.workers) == (run.workload, run.workers)
        }
        return times[pytorch_ddp.LARGE] / times[pytorch_ddp.SMALL] - 1

    small = [run for run in RUNS if run.plan == pytorch_ddp.SMALL and run.workers > 1]
    assert len(small) == 16
    for run in small:
        assert float(run.condition("throughput_change_percent")) < 0
        assert change(run) < 0


def test_the_sign_comes_from_what_was_calibrated():
    """Without the cost of a bucket small buckets win in most of the 16 pairs: more of them are hidden."""
    predicted = dict(zip(RUNS, pytorch_ddp.judge(RUNS, off=("hook_time", "compute_slowdown")).rows, strict=True))
    slower = [
        predicted[large].predicted < row.predicted
        for small, row in predicted.items()
        for large in RUNS
        if (small.plan, large.plan) == (pytorch_ddp.SMALL, pytorch_ddp.LARGE)
        and (small.workload, small.workers) == (large.workload, large.workers)
        and small.workers > 1
    ]
    assert len(slower) == 16
    assert sum(slower) == 4


@pytest.mark.parametrize("effect", ["compute_slowdown", "hook_time", "copy_in", "copy_out"])
def test_each_effect_brings_the_errors_down(rows, effect):
    without = errors(pytorch_ddp.judge(RUNS, off=(effect,)).rows)
    assert np.median(without) > np.median(errors(rows)) + 0.003


def test_only_runs_on_one_gpu_are_fitted_and_the_calibration_gives_them_back(rows):
    for row, run in zip(rows, RUNS, strict=True):
        assert row.fitted == (run.workers == 1)
        if row.fitted:
            assert abs(row.error) < (0.007 if run.plan == pytorch_ddp.SMALL else 1e-9)


def test_calibrated_costs_are_those_of_kernels_and_copies():
    for name in dict.fromkeys(run.workload for run in RUNS):
        effects = pytorch_ddp.calibrated([run for run in RUNS if run.workload == name]).effects
        assert 5e-6 < effects.hook_time < 100e-6
        assert effects.copy_in == effects.copy_out
        # Not faster than the memory of a V100 (900 GB/s) lets a copy be.
        assert effects.copy_in > 2 / 900e9


def test_the_leak_test_catches_a_calibration_on_two_gpus():
    def peeking(runs):
        two = {(run.workload, run.plan): run.iteration_time for run in runs if run.workers == 2}
        shifted = [
            replace(run, samples=(two.get((run.workload, run.plan), run.iteration_time),)) if run.workers == 1 else run
            for run in runs
        ]
        return pytorch_ddp.judge(shifted)

    few = [run for run in RUNS if run.workload == "resnet50-v100"]
    assert leaks(peeking, few) != []
