"""The ledger as used: nothing of a source in what it is held against, and bands that hold sources left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from osfmodel.engine.band_values import bundled_distances
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.entities.files.usual_effects import usual_values
from osfmodel.ledger import LEDGER
from osfmodel.ledger.as_used import judged_of, reliability, summary_of, used_of
from osfmodel.ledger.check import used_overall
from tests.kept import judged

COVERED, LEAST_COVERED = 0.85, 0.65
CONTRADICTORY = {"gavel"}
"""Sources whose runs contradict themselves: docs/ledger/gavel.md."""


@pytest.fixture
def checked(checked):
    return [one for one in checked if one.as_used is not None]


def test_sources_left_out_lie_within_the_bands_of_the_others(checked):
    overall = used_overall(checked)
    assert overall.sources >= 10
    assert overall.coverage >= COVERED
    assert abs(overall.bias) <= 0.025
    low = {one.source for one in checked if one.as_used.coverage < LEAST_COVERED}
    assert low <= CONTRADICTORY


def test_found_coverage_is_near_the_stated_one_at_every_level(checked):
    real = {one.source: [row.judged for row in one.used] for one in checked if not one.emulated}
    for stated, found in reliability(real).items():
        assert found == pytest.approx(stated, abs=0.08), stated


def test_coverage_can_fail(checked):
    """Runs that took 3 times as long lie outside nearly all bands."""
    for one in checked:
        slower = [row.judged._replace(measured=3 * row.judged.measured) for row in one.used]
        assert summary_of(one.source, used_of(("", judged) for judged in slower)).coverage < 0.5, one.source


@pytest.mark.parametrize("name", [name for name, recipe in LEDGER.items() if recipe.jobs is not None])
def test_no_prediction_depends_on_the_run_that_it_is_held_against(name):
    """The times of runs on several workers are multiplied: predictions and bands stay. Fitted runs keep theirs."""
    recipe, every = LEDGER[name], load_measurements(name)
    runs = every[:60]
    if name.startswith("emulated-"):
        return  # tests/ledger/test_leaks.py: these are predicted as judged
    changed = [
        run
        if run.workers == 1 or isinstance(job, str)
        else replace(run, samples=tuple(3 * sample for sample in run.samples))
        for run, job in zip(runs, recipe.jobs(runs), strict=True)
    ]
    assert any(run != other for run, other in zip(runs, changed, strict=True))

    def predicted(some):
        return [one for _, one in judged_of(name, recipe.group or name, some, recipe.jobs(some))]

    before = [row.judged for row in judged(name)[0].used] if runs == every else predicted(runs)
    assert [(one.predicted, one.fast, one.slow) for one in before] == [
        (one.predicted, one.fast, one.slow) for one in predicted(changed)
    ]


def test_a_source_has_no_part_in_its_own_effects_and_bands(checked):
    for one in checked:
        group = LEDGER[one.source].group or one.source
        for value in usual_values():
            if value.without == group:
                assert one.source not in value.sources
        for distances in bundled_distances():
            if distances.without == group:
                assert one.source not in distances.sources
        kinds = {row.judged.kind for row in one.used}
        assert kinds <= {distances.kind for distances in bundled_distances() if distances.without == group}


@pytest.mark.long
def test_the_bundled_effects_and_bands_are_those_of_the_ledger(tmp_path):
    import filecmp
    import subprocess
    import sys

    from tests.conftest import ROOT

    subprocess.run([sys.executable, ROOT / "profiles/make_bands.py", tmp_path], check=True)
    for name in ("effects.json", "bands.json"):
        assert filecmp.cmp(tmp_path / name, ROOT / "profiles" / name, shallow=False), name
