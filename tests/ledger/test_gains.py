"""benchmarks/gains.py on pairs that are made up."""

import math
import sys
from pathlib import Path

import pytest

from osfmodel.entities.files.measurements import save_measurements
from osfmodel.entities.measurement import Measurement

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "profiles")]

import gains as judging  # noqa: E402
from make_bands import JudgedPair, gains  # noqa: E402


def pair(group, outside, predicted=-0.05, measured=-0.04, kind="gloo"):
    return JudgedPair(group, group, kind, predicted, measured, outside)


def test_the_doubt_of_a_gain_is_that_of_the_worst_group():
    """Of ten pairs nine lie within the ninth; strategies with sharding share the doubt of several nodes."""
    near = [pair("near", place / 1000) for place in range(10)]
    far = [pair("far", place / 100) for place in range(10)]
    found = gains([*near, *far, pair("other", 0.5, kind="several nodes with sharding")])
    assert found == pytest.approx({"gloo": math.expm1(0.08), "several nodes": math.expm1(0.5)})


def test_each_source_is_judged_without_its_own_machines():
    """``wild`` lies beyond what ``calm`` shows, and calm within what wild shows."""
    rows = [*(pair("calm", 0.0) for _ in range(4)), *(pair("wild", 0.1, measured=0.04) for _ in range(4))]
    table = list(judging.lines(rows))
    assert table[2].startswith("| calm | 4 | 4 | 4 | 100% | 0.80 | -0.80 |")
    assert table[3].startswith("| wild | 4 | 4 | 0 | 0% | -0.80 | 0.80 |")
    assert "Sign right in 4 of 8 pairs (50%). Means of sources: inside 50%" in table[4]


@pytest.mark.parametrize(("tuned", "inside"), [(0.92, True), (0.99, False)])
def test_runs_that_say_what_was_promised_are_judged_by_that_interval(tmp_path, tuned, inside):
    runs = [
        Measurement("w", "c", plan, 2, (time,), conditions=conditions)
        for plan, time, conditions in (
            ("ddp", 1.0, ()),
            ("tuned.json", tuned, (("promised_gain", "0.0800 0.0500 0.1000"),)),
        )
    ]
    save_measurements("runs", runs, tmp_path / "runs.json")
    found = judging.promised(str(tmp_path / "runs.json"))
    assert (found.predicted, found.measured) == pytest.approx((math.log(0.92), math.log(tuned)))
    assert (found.outside == 0) == inside
    wide = pair("others", 0.5)
    assert f"| {'100%' if inside else '0%'} |" in list(judging.lines([wide, found]))[3]
    save_measurements("runs", runs[:1], tmp_path / "runs.json")
    with pytest.raises(SystemExit, match="no run says what was promised"):
        judging.promised(str(tmp_path / "runs.json"))
