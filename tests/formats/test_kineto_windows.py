"""Work without a launch on the record: when it is taken to have been submitted."""

from __future__ import annotations

import numpy as np
import pytest

from osfmodel.formats.kineto.windows import _filled
from tests.draws import seeds


def naive(rows, submitted):
    """Stream by stream, one row after the other."""
    found = submitted.copy()
    for stream in set(rows[:, 3]):
        known = -np.inf
        for place in sorted(np.flatnonzero(rows[:, 3] == stream), key=lambda place: rows[place, 0]):
            known = submitted[place] if np.isfinite(submitted[place]) else known
            found[place] = known
    return found


@pytest.mark.parametrize("seed", seeds(16, 50))
def test_work_without_a_launch_counts_with_earlier_work_of_its_stream(seed):
    """Few starts, so that several are equal; streams of one kernel and streams with no launch are among them."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 60))
    rows = np.zeros((count, 4))
    rows[:, 0] = rng.integers(0, 20, count)
    rows[:, 3] = rng.integers(0, rng.integers(1, 12), count)
    submitted = np.where(rng.random(count) < 0.5, np.nan, rng.random(count))
    submitted[0] = 0.5
    assert np.array_equal(_filled(rows, submitted), naive(rows, submitted))


def test_where_no_launch_is_on_the_record_work_was_submitted_when_it_started():
    rows = np.array([[3.0, 4.0, 0.0, 1.0], [1.0, 2.0, 0.0, 2.0]])
    assert _filled(rows, np.full(2, np.nan)).tolist() == [3.0, 1.0]


def test_as_many_streams_as_kernels_take_no_pass_each():
    """Two kernels on each of 200,000: the first was launched, the second is taken to be with it."""
    streams = np.tile(np.arange(200_000.0), 2)
    starts = np.arange(400_000.0)
    rows = np.column_stack((starts, starts + 1, starts, streams))
    launches = np.where(starts < 200_000, starts, np.nan)
    assert np.array_equal(_filled(rows, launches), np.tile(np.arange(200_000.0), 2))
