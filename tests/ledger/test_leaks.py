"""No prediction may know what was measured: changed times of predicted runs must leave every prediction where it is.

All runs that are reported as predicted are changed at once, each by a factor of its own. That takes one further
judgement per source and reaches every predicted run, what it tells about itself and what it tells about others: a
prediction made from any of those times moves, unless the factors happen to cancel, which they are all different for.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from osfmodel.entities.files.measurements import load_measurements
from osfmodel.ledger import LEDGER, Row, Verdict
from tests.kept import judged


def slower(run, factor):
    peak = run.peak_bytes and round(factor * run.peak_bytes)
    return replace(run, samples=tuple(factor * sample for sample in run.samples), peak_bytes=peak)


def own_factor(number):
    """Differs from run to run, so that no ratio of two of them stays."""
    return 1 + 0.01 * (number + 1)


def leaks(judge, runs, factor=own_factor, before=None) -> list[str]:
    """Labels of the rows whose prediction moves when (only) the measured times of predicted runs change.

    Where rows are not runs (papers: ratios of two), nothing may be fitted, and all runs change.
    ``before``: the rows as they are, where they are known.
    """
    before = before or judge(runs).rows
    if len(before) == len(runs):
        held = [row.predicted is not None and not row.fitted for row in before]
    else:
        assert not any(row.fitted for row in before)
        held = [True] * len(runs)
    changed = [
        slower(run, factor(number)) if out else run for number, (run, out) in enumerate(zip(runs, held, strict=True))
    ]
    after = judge(changed).rows
    assert sum(row.measured != other.measured for row, other in zip(before, after, strict=True)) > 0
    return [row.label for row, other in zip(before, after, strict=True) if row.predicted != other.predicted]


@pytest.mark.parametrize("source", LEDGER)
def test_predictions_do_not_know_the_measurement(source):
    """Predictions of a source do not depend on the predicted runs' measurements."""
    before = judged(source)[0].rows
    assert leaks(LEDGER[source].judge, load_measurements(source), before=before) == []


@pytest.mark.parametrize("by", [0, 1])
def test_a_leak_would_be_seen(by):
    """Each row predicted by itself, or by its neighbour, as a fit on predicted rows would."""

    def cheat(runs):
        pairs = zip(runs, [*runs[by:], *runs[:by]], strict=True)
        return Verdict(tuple(Row(run.workload, run.iteration_time, other.iteration_time) for run, other in pairs), "")

    assert len(leaks(cheat, load_measurements("bcaffe"))) == len(load_measurements("bcaffe"))


def test_a_leak_into_ratios_would_be_seen():
    """The measured ratio itself as the prediction: seen with a factor for each run, and not with one for all."""

    def cheat(runs):
        verdict = LEDGER["papers"].judge(runs)
        return verdict._replace(rows=tuple(row._replace(predicted=row.measured) for row in verdict.rows))

    runs = [run for run in load_measurements("papers") if run.workers == 32]
    assert len(leaks(cheat, runs)) == 8
    with pytest.raises(AssertionError, match="> 0"):
        leaks(cheat, runs, factor=lambda number: 2)
