"""Error bands: made from the ledger, traceable, and covering what they were not made from."""

from __future__ import annotations

import filecmp
import math
import sys

import pytest

import osfmodel as osf
from osfmodel.engine.bands import (
    ENOUGH,
    Band,
    Error,
    Regime,
    band_for,
    bands_document,
    bands_of,
    bundled_bands,
    decode_bands,
)
from osfmodel.entities.errors import DataError
from osfmodel.entities.files.documents import encode
from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "profiles"))
import make_bands

COVERED = 0.85


@pytest.fixture(scope="module")
def settings():
    return make_bands.settings()


@pytest.fixture(scope="module")
def errors(settings):
    return make_bands.flat(settings.values())


def test_bands_cover_runs_that_they_were_not_made_from(settings, errors):
    """Every second setting held out; and each source held out as a whole, over the rows and over the sources."""
    assert make_bands.by_halves(settings) >= COVERED
    parts = make_bands.by_source(errors)
    assert make_bands.pooled(errors, parts) >= COVERED
    assert make_bands.mean(parts) >= COVERED
    assert min(parts.values()) >= 0.79  # pollux-cifar10


def test_runs_that_share_a_fitted_number_are_in_one_setting(settings):
    """So that holding out a setting holds out all that was fitted with it; no row is in two, and none is lost."""
    placements = {key[-2:] for key in settings if key[0] == "pollux-imagenet"}
    assert len(placements) == sum(key[0] == "pollux-imagenet" for key in settings) == 143
    assert len([key for key in settings if key[0] == "ddl-benchmarks"]) == 3 * 2 * 4
    assert (
        sum(map(len, settings.values())) == 5189 + 3 * (180 + 69) + 183 + 39 + 12
    )  # and 40 ratios and 30 sparse runs, which take no part


def test_other_grids_cover_about_as_much(errors):
    """Edges and the least number of runs are choices: with halves and doubles of them most rows stay covered."""
    for what, values in make_bands.VARIANTS:
        with make_bands.grid(**values):
            parts = make_bands.by_source(errors)
        assert make_bands.pooled(errors, parts) >= 0.90, what
        assert make_bands.mean(parts) >= 0.85, what


def test_coverage_can_fail(errors):
    narrow = [error._replace(error=error.error / 4) for error in errors[::2]]
    assert make_bands.coverage(narrow, errors[1::2]) < COVERED


def test_the_bundled_bands_and_the_page_are_those_of_the_ledger(settings, errors, tmp_path):
    made = tmp_path / "bands.json"
    make_bands.profiles.write_text(made, encode(bands_document(bands_of(errors))))
    assert filecmp.cmp(made, ROOT / "profiles/bands.json", shallow=False)
    page = (ROOT / "docs/ledger.md").read_text(encoding="utf-8")
    printed = "\n".join(make_bands.report(settings)).splitlines()
    assert [line for line in printed if line.startswith("|") and line not in page] == []
    assert f"both ways: {printed[0].split()[5]} of the rows" in page.replace("\n", " ")


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
    assert Band(1.0, 8, ("a",)).interval(1.0) == (0.5, math.inf)
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
    with pytest.raises(DataError, match=r"missing required field 'bandwidth_cell' at '\.cells\[0\]'"):
        decode_bands(b'{"schema_version": 1, "kind": "bands", "cells": [{"ratio_cell": 1}]}')
