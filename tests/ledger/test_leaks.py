"""No prediction may know what was measured: changing a predicted run's time must leave its prediction where it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from osfmodel.ledger import LEDGER, Row, Verdict
from osfmodel.measurements import load_measurements

STEP = 17
"""Every so many runs of a long source are changed together, so that each predicted run is changed once."""


def leaks(judge, runs) -> list[str]:
    """Labels of the predicted rows whose prediction moves when (only) measured times of predicted rows change."""
    before = judge(runs).rows
    if len(before) != len(runs):  # ratios of runs: none of which may be fitted on
        assert not any(row.fitted for row in before)
        after = judge([replace(run, samples=(2 * run.iteration_time,)) for run in runs]).rows
        return [row.label for row, other in zip(before, after, strict=True) if row.predicted != other.predicted]
    found = []
    for offset in range(min(STEP, len(runs))):
        chosen = [
            number
            for number in range(offset, len(runs), STEP)
            if before[number].predicted is not None and not before[number].fitted
        ]
        changed = list(runs)
        for number in chosen:
            changed[number] = replace(runs[number], samples=tuple(2 * sample for sample in runs[number].samples))
        after = judge(changed).rows
        found += [before[number].label for number in chosen if after[number].predicted != before[number].predicted]
    return found


@pytest.mark.parametrize("source", LEDGER)
def test_predictions_do_not_know_the_measurement(source):
    assert leaks(LEDGER[source].judge, load_measurements(source)) == []


def test_a_leak_would_be_seen():
    def cheat(runs):
        return Verdict(tuple(Row(run.workload, run.iteration_time, run.iteration_time) for run in runs), "nothing")

    assert len(leaks(cheat, load_measurements("bcaffe"))) == len(load_measurements("bcaffe"))
