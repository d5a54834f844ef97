"""Cycles of a profiler's schedule: several traces of each rank, read as further steps of one job."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from click.testing import CliRunner

from osfmodel.cli import main
from osfmodel.errors import DataError
from osfmodel.explain import explain_trace
from osfmodel.formats import Hints, load_trace
from osfmodel.formats.source_text import Text
from osfmodel.trace.nouns import measurement_of
from tests.conftest import ROOT
from tests.formats import traces
from tests.formats.traces import Job

STORED = ROOT / "tests/formats/data/cycles"
"""What two ranks wrote with schedule(wait=0, warmup=3, active=3, repeat=2) and TensorBoard's handler."""
FILES = sorted(STORED.iterdir())
"""Of rank 0 the first and the second cycle, then those of rank 1."""
LATER = 60_000_000
"""Microseconds between the cycles of the jobs that never ran."""


def test_cycles_of_a_recorded_job_are_its_steps():
    trace = load_trace([STORED])
    assert [[step.number for step in rank.steps] for rank in trace.ranks] == [[3, 4, 5, 9, 10, 11]] * 2
    assert "2 cycles of the profiler's schedule are read as one trace, steps 3..5, 9..11" in trace.remarks
    first, second = (load_trace(FILES[cycle::2]) for cycle in (0, 1))
    for rank, before, after in zip(trace.ranks, first.ranks, second.ranks, strict=True):
        parts = [*before.steps, *after.steps]
        assert [step.time for step in rank.steps] == pytest.approx([step.time for step in parts])
        waits = [[one.waiting for one in step.reductions] for step in parts]
        for step, known in zip(rank.steps, waits, strict=True):
            assert [one.waiting for one in step.reductions] == pytest.approx(known, abs=1e-7)
    assert len(measurement_of(trace).samples) == 6
    assert explain_trace(trace).cause == explain_trace(load_trace(FILES[::-1])).cause


def test_one_rank_of_several_in_cycles():
    trace = load_trace(FILES[:2])
    assert [len(rank.steps) for rank in trace.ranks] == [6]
    assert trace.workers == 2


def test_ranks_with_other_cycles_are_refused():
    with pytest.raises(DataError, match="cannot be matched: rank 0 has 2 and rank 1 has 1: give the files of one run"):
        load_trace(FILES[:3])


@pytest.mark.parametrize("command", ["explain", "import"])
def test_commands_take_a_folder_of_cycles(command):
    ran = CliRunner().invoke(main, [command, str(STORED)])
    assert ran.exit_code == 0
    said = " ".join(ran.output.split())
    assert "2 cycles of the profiler's schedule are read as one trace, steps 3..5, 9..11" in said


def cycle(job, rank, number, pid=1, clock=0, names="distributedInfo"):
    """A later cycle of a job that never ran, whose steps count on; ``clock`` is how much the rank's is ahead then."""
    document = traces.trace(job, rank)
    for event in document["traceEvents"]:
        event["ts"] += number * LATER + clock
        event["pid"] = pid
        event["name"] = re.sub(
            r"(?<=ProfilerStep#)\d+", lambda digits: str(int(digits[0]) + 10 * number), event["name"]
        )
    document["host_name"] = f"host{rank}"
    if names == "process":
        del document["distributedInfo"]
    return Text(f"{rank}-{number}.json", json.dumps(document))


def test_each_cycle_is_brought_to_one_clock_by_itself():
    """Clocks of hosts drift by 4 ms between the cycles."""
    job = Job(late=(0, 200), clocks=(0, 0))
    found = load_trace([cycle(job, rank, at, clock=rank * (5000 + 4000 * at)) for rank in (0, 1) for at in (0, 1)])
    alone = load_trace([cycle(job, rank, 0) for rank in (0, 1)])
    for rank, once in zip(found.ranks, alone.ranks, strict=True):
        known = [[one.waiting for one in step.reductions] for step in once.steps]
        for step, waits in zip(rank.steps, known * 2, strict=True):
            assert [one.waiting for one in step.reductions] == pytest.approx(waits, abs=1e-9)


def test_a_process_that_does_not_say_its_rank_is_one():
    job = Job(late=(0, 200), clocks=(0, 0))
    files = [cycle(job, rank, at, names="process") for rank in (0, 1) for at in (0, 1)]
    assert [(rank.rank, len(rank.steps), rank.workers) for rank in load_trace(files).ranks] == [(0, 6, 2), (1, 6, 2)]
    (alone,) = load_trace(files[:2]).ranks
    assert len(alone.steps) == 6


@pytest.mark.parametrize(
    ("first", "second"),
    [({"number": 1}, {"number": 1}), ({"number": 0, "pid": 1}, {"number": 1, "pid": 2})],
    ids=["steps counted anew", "another process"],
)
def test_two_runs_are_no_cycles(first, second):
    job = Job()
    with pytest.raises(DataError, match=r"both of rank 0, and not cycles of one schedule\(repeat=...\)"):
        load_trace([cycle(job, 0, **first), replace(cycle(job, 0, **second), file="other.json")])


def test_cycles_of_other_steps_are_refused():
    job = Job(late=(0, 0), clocks=(0, 0))
    files = [cycle(job, 0, 0), cycle(job, 0, 1), cycle(job, 1, 0), cycle(job, 1, 2)]
    with pytest.raises(DataError, match=r"0-1.json has the steps 15..17, 1-2.json 25..27: give the files of one run"):
        load_trace(files, Hints("job"))
