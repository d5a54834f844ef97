"""Peaks of real models: what one profile each says of other batch sizes and plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from osfmodel import profiles
from osfmodel.ledger import memory
from osfmodel.ledger.memory import judge
from osfmodel.measurements import load_measurements

RUNS = load_measurements("memory")


@pytest.fixture(scope="module")
def rows():
    return judge(RUNS).rows


def test_errors_are_those_reached(rows):
    errors = np.abs([row.error for row in rows])
    assert np.median(errors) <= 0.005
    assert errors.max() <= 0.03


def test_no_run_has_the_batch_size_of_its_profile(rows):
    for run in RUNS:
        assert int(run.condition("batch_size")) != profiles.load_workload(run.workload).batch_size
    assert all(row.counts for row in rows)
    first = replace(RUNS[0], conditions=(("batch_size", str(profiles.load_workload(RUNS[0].workload).batch_size)),))
    assert not judge([first]).rows[0].counts


def test_cells_are_measured_once_and_at_three_batch_sizes():
    cells = [(run.workload, run.condition("option"), run.condition("batch_size")) for run in RUNS]
    models, options, sizes = (set(values) for values in zip(*cells, strict=True))
    assert len(set(cells)) == len(cells)
    assert len(models) >= 5
    assert len(options) == 8
    assert sizes == {"8", "16", "32"}


def test_what_does_not_grow_with_the_batch_matters(monkeypatch):
    """With all of the peaks in proportion to the batch, errors are far beyond those reached."""
    load = profiles.load_workload

    def all_growing(name):
        found = load(name)
        return replace(found, layers=tuple(replace(layer, steady_bytes=None) for layer in found.layers))

    monkeypatch.setattr(profiles, "load_workload", all_growing)
    memory._workload.cache_clear()
    worst = max(abs(row.error) for row in judge(RUNS).rows)
    memory._workload.cache_clear()
    assert worst > 0.3
