"""Error bands: made from the ledger, traceable, and covering what they were not made from."""

from __future__ import annotations

import filecmp
import math
import subprocess
import sys

import pytest

import osfmodel as osf
from osfmodel.bands import ENOUGH, Band, Error, Regime, band_for, bands_of, bundled_bands, decode_bands
from osfmodel.errors import DataError
from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "profiles"))
import make_bands

COVERED = 0.85


@pytest.fixture(scope="module")
def errors():
    return make_bands.ledger_errors()


def test_bands_cover_runs_that_they_were_not_made_from(errors):
    """Every second run held out; and each source held out as a whole, on average over the sources."""
    assert make_bands.by_halves(errors) >= COVERED
    by_source = make_bands.by_source(errors)
    assert sum(by_source.values()) / len(by_source) >= COVERED


def test_coverage_can_fail(errors):
    narrow = [error._replace(error=error.error / 4) for error in errors[::2]]
    assert make_bands.coverage(narrow, errors[1::2]) < COVERED


def test_the_bundled_bands_are_those_of_the_ledger(tmp_path):
    made = tmp_path / "bands.json"
    subprocess.run([sys.executable, ROOT / "profiles/make_bands.py", made], check=True, capture_output=True)
    assert filecmp.cmp(made, ROOT / "profiles/bands.json", shallow=False)


def few(source, ratio, error, count=ENOUGH):
    return [Error(source, Regime(ratio, 1e8), error)] * count


def test_a_cell_is_as_wide_as_its_worst_source_and_as_cells_with_less_communication():
    bands = bands_of(few("a", 0.5, 0.1) + few("b", 0.5, -0.2) + few("a", 2.0, 0.05) + few("a", 5.0, 0.9, ENOUGH - 1))
    low, high = (bands[Regime(ratio, 1e8).cell] for ratio in (0.5, 2.0))
    assert (low.half_width, low.runs, low.sources) == (0.2, 2 * ENOUGH, ("a", "b"))
    assert (high.half_width, high.sources) == (0.2, ("a",))
    assert len(bands) == 2


def test_the_nearest_cell_serves_where_there_are_too_few_runs():
    bands = bands_of(few("a", 0.5, 0.1))
    assert band_for(Regime(0.6, 2e8), bands) == Band(0.1, ENOUGH, ("a",))
    assert band_for(Regime(50.0, 1e12), bands) == Band(0.1, ENOUGH, ("a",), nearest=True)
    assert band_for(Regime(0.0, math.inf), bands) is None
    assert band_for(Regime(1.0, 1.0), {}) is None


def test_the_interval_is_where_measurements_are_expected():
    """|predicted / measured - 1| <= h is predicted / (1 + h) <= measured <= predicted / (1 - h)."""
    low, high = Band(0.25, 8, ("a",)).interval(1.0)
    assert (1.0 / low - 1, 1.0 / high - 1) == pytest.approx((0.25, -0.25))
    assert Band(1.5, 8, ("a",)).interval(1.0)[1] == math.inf


def test_every_prediction_over_a_network_has_a_band():
    workload, cluster = osf.load_workload("resnet50-v100"), osf.load_cluster("v100-10gbe")
    for workers in (2, 16, 64):
        for prediction in osf.compare(workload, cluster, workers).predictions:
            assert prediction.band is not None
            assert 0 < prediction.band.half_width < 1
    assert osf.predict(workload, cluster, "ddp", 1).band is None
    assert osf.tune(workload, cluster, 16).outcomes[0].band in bundled_bands().values()


def test_a_bad_file_of_bands_is_refused():
    with pytest.raises(DataError):
        decode_bands(b'{"schema_version": 1, "kind": "bands", "cells": [{"ratio_cell": 1}]}')
