"""Whether a step fits: chances from errors of published peaks."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from osfmodel.entities.errors import DataError
from osfmodel.solve.verdicts import (
    DATA,
    LEVELS,
    NO,
    PIPELINE,
    PROFILED,
    TENSOR,
    TIGHT,
    YES,
    bundled_peaks,
    cell_of,
    chance_to_fit,
    decode_peaks,
    reserved_of,
    safe_bytes,
    setup_of,
    slowed,
    verdict_of,
)
from profiles.make_peaks import JudgedPeak, peaks_document

ROOT = Path(__file__).parents[2]
GIB = 2**30


def test_verdicts_by_chance():
    assert [verdict_of(chance) for chance in (1.0, 0.95, 0.9499, 0.0501, 0.05, 0.0)] == [YES, YES, TIGHT, TIGHT, NO, NO]


def test_kinds_of_set_up():
    assert setup_of(True) == PROFILED
    assert setup_of(False) == DATA
    assert setup_of(False, (2, 1, 1)) == setup_of(False, (1, 2, 1)) == TENSOR
    assert setup_of(False, (2, 1, 2)) == PIPELINE
    strategies = ("ddp", "zero-1", "zero-2", "zero-3", "fsdp2")
    assert [setup_of(False, strategy=one) for one in strategies] == [DATA, DATA, TENSOR, TENSOR, DATA]
    assert setup_of(True, strategy="zero-2") == PROFILED


@pytest.mark.parametrize("setup", [PROFILED, DATA, TENSOR, PIPELINE])
def test_the_chance_rises_with_the_room_and_is_that_of_the_quantiles(setup):
    chances = [chance_to_fit(40 * GIB, step * GIB // 4, setup) for step in range(1, 400)]
    assert chances == sorted(chances)
    assert 0 < chances[0] < 0.01
    assert 0.99 < chances[-1] < 1
    for level, error in zip(LEVELS, cell_of(setup).errors, strict=True):
        assert chance_to_fit(10**12, math.ceil(10**12 * math.exp(error)), setup) >= level - 1e-6


@pytest.mark.parametrize("setup", [PROFILED, DATA, TENSOR, PIPELINE])
def test_what_is_safe_is_the_most_that_surely_fits(setup):
    held = safe_bytes(80 * GIB, setup)
    assert verdict_of(chance_to_fit(reserved_of(held, setup), 80 * GIB, setup)) == YES
    assert verdict_of(chance_to_fit(reserved_of(round(held * 1.01), setup), 80 * GIB, setup)) != YES


def test_each_source_weighs_the_same_and_can_be_left_out():
    """Ninety runs of one source and one of another: each has half of the weight."""
    runs = [JudgedPeak("many", DATA, number / 100) for number in range(90)] + [JudgedPeak("one", DATA, 5.0)]
    document = peaks_document(runs, {DATA: 1.0})
    every, without_many, without_one = document["cells"]
    assert every["errors"][LEVELS.index(0.25)] == pytest.approx(0.44, abs=0.011)
    assert every["errors"][LEVELS.index(0.75)] == 5.0
    assert (every["runs"], every["sources"]) == (91, ["many", "one"])
    assert (without_many["without"], without_many["errors"]) == ("many", [5.0] * len(LEVELS))
    assert max(without_one["errors"]) < 0.9


def test_another_file_is_refused():
    with pytest.raises(DataError, match="is a workload"):
        decode_peaks(b'{"schema_version": 1, "kind": "workload"}')


def test_a_source_was_judged_without_itself():
    for cell in bundled_peaks().cells:
        assert cell.without not in cell.sources
        assert list(cell.errors) == sorted(cell.errors)


@pytest.mark.long
@pytest.mark.skipif("OSFMODEL_DATA" not in os.environ, reason="needs the published runs")
def test_the_file_is_what_its_command_makes(tmp_path):
    subprocess.run([sys.executable, ROOT / "profiles/make_peaks.py", tmp_path], check=True)
    assert (tmp_path / "peaks.json").read_bytes() == (ROOT / "profiles/peaks.json").read_bytes()


def test_a_step_is_expected_to_take_longer_where_memory_may_not_be_enough():
    assert [slowed(chance) for chance in (1.0, 0.95, 0.5, 0.25, 0.01)] == pytest.approx([1, 1, 3.1, 4.15, 1])
