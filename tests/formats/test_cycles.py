"""Cycles of a profiler's schedule: several traces of each rank, read as further steps of one job."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace

import pytest

from osfmodel.diagnosis.explain_trace import explain_trace
from osfmodel.entities.errors import DataError
from osfmodel.formats import Hints, load_trace
from osfmodel.formats.source_text import Text
from osfmodel.formats.traces import measurement_of
from tests.commands import invoke
from tests.conftest import ROOT
from tests.formats import traces
from tests.formats.traces import Job

STORED = ROOT / "tests/formats/data/cycles"
"""Files of two ranks with schedule(wait=0, warmup=3, active=3, repeat=2) and TensorBoard's handler."""
FILES = sorted(STORED.iterdir())
"""Rank 0's first and second cycle, then rank 1's."""
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
    assert [(rank.file, rank.checksum) for rank in trace.ranks] == [(one.file, one.checksum) for one in first.ranks]
    assert len(measurement_of(trace).samples) == 6
    assert explain_trace(trace).cause == explain_trace(load_trace(FILES[::-1])).cause


def test_one_rank_of_several_in_cycles():
    trace = load_trace(FILES[:2])
    assert [len(rank.steps) for rank in trace.ranks] == [6]
    assert trace.workers == 2


def test_ranks_with_other_cycles_are_refused():
    with pytest.raises(DataError, match="cannot be matched: rank 0 has 2 and rank 1 has 1: name the files of one run"):
        load_trace(FILES[:3])


@pytest.mark.parametrize("command", ["explain", "import"])
def test_commands_take_a_folder_of_cycles(command):
    ran = invoke([command, str(STORED)])
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
    [({"number": 1}, {"number": 1, "clock": LATER}), ({"number": 0, "pid": 1}, {"number": 1, "pid": 2})],
    ids=["steps counted anew", "another process"],
)
def test_two_runs_are_no_cycles(first, second):
    job = Job()
    with pytest.raises(DataError, match=r"both of rank 0, and not cycles of one schedule\(repeat=...\)"):
        load_trace([cycle(job, 0, **first), replace(cycle(job, 0, **second), file="other.json")])


def test_cycles_of_other_steps_are_refused():
    job = Job(late=(0, 0), clocks=(0, 0))
    files = [cycle(job, 0, 0), cycle(job, 0, 1), cycle(job, 1, 0), cycle(job, 1, 2)]
    with pytest.raises(DataError, match=r"0-1.json has the steps 15..17, 1-2.json 25..27: name the files of one run"):
        load_trace(files, Hints("job"))


def recorded(place, *without, ahead=0, **told):
    """One of the stored files without these fields of its header; ``ahead`` are seconds added to its times."""
    document = json.loads(gzip.decompress(FILES[place].read_bytes())) | told
    for name in without:
        del document[name]
    for event in document["traceEvents"]:
        event["ts"] += 1_000_000 * ahead
    return document


def files(*documents):
    """Each as a file that is named by its place."""
    return [Text(f"{place}.json", json.dumps(document)) for place, document in enumerate(documents)]


def renamed(document, before, after):
    """The same with events of other names."""
    for event in document["traceEvents"]:
        event["name"] = event["name"].replace(before, after)
    return document


def in_process(document, pid):
    """The same of another process."""
    for event in document["traceEvents"]:
        event["pid"] = pid
    return document


def unnoted(document):
    """The same without the events that number or end steps."""
    return renamed(renamed(document, "ProfilerStep#", "step "), "Optimizer.step#", "optimizer ")


@pytest.mark.parametrize("without", [("distributedInfo",), ("distributedInfo", "host_name")], ids=["host", "no host"])
def test_a_job_that_does_not_say_its_ranks_has_the_same_cycles(without):
    """Traces of old versions of PyTorch have neither."""
    trace = load_trace(files(*(recorded(place, *without) for place in range(4))))
    assert [[step.number for step in rank.steps] for rank in trace.ranks] == [[3, 4, 5, 9, 10, 11]] * 2
    assert trace.workers == 2
    (alone,) = load_trace(files(recorded(0, *without), recorded(1, *without))).ranks
    assert len(alone.steps) == 6


@pytest.mark.parametrize("host", ["localhost", None])
def test_processes_of_one_number_in_containers_are_ranks(host):
    documents = [in_process(recorded(place, "distributedInfo", "host_name"), 1) for place in (0, 2)]
    told = {"host_name": host} if host else {}
    trace = load_trace(files(*(document | told for document in documents)))
    assert [(rank.rank, len(rank.steps)) for rank in trace.ranks] == [(0, 3), (1, 3)]


def test_cycles_of_containers_are_matched_where_their_files_say_the_rank():
    documents = [in_process(recorded(place, "distributedInfo"), 1) for place in range(4)]
    with pytest.raises(DataError, match="no step is on the record of all ranks"):
        load_trace(files(*documents))
    named = [Text(f"rank{place // 2}.{place}.json", json.dumps(one)) for place, one in enumerate(documents)]
    assert [(rank.rank, len(rank.steps)) for rank in load_trace(named).ranks] == [(0, 6), (1, 6)]


def test_files_that_note_nothing_of_their_process_are_ranks():
    trace = load_trace(files(*(unnoted(recorded(place, "distributedInfo")) for place in (0, 2))))
    assert [(rank.rank, len(rank.steps)) for rank in trace.ranks] == [(0, 1), (1, 1)]


@pytest.mark.parametrize("command", ["explain", "import"])
def test_ranks_that_share_no_step_are_refused(command):
    ran = invoke([command, str(FILES[0]), str(FILES[3])])
    assert ran.exit_code != 0
    said = " ".join(ran.output.split())
    assert "no step is on the record of all ranks: rank 0 has 3..5, rank 1 has 9..11: give the traces" in said


def test_jobs_of_other_sizes_are_refused():
    three = recorded(2, distributedInfo={"backend": "gloo", "rank": 2, "world_size": 3})
    with pytest.raises(DataError, match=r"^0.json is of a job of 2 ranks, 2.json of one of 3: give the files of one"):
        load_trace(files(recorded(0), recorded(2), three))


def test_ranks_that_were_recorded_at_other_times_are_refused():
    with pytest.raises(DataError, match=r"^0.json and 1.json do not .*: they were recorded 3600 s apart: give"):
        load_trace(files(recorded(0), recorded(2, ahead=3600)))
    alone = [renamed(recorded(0), "gloo:", "other "), renamed(recorded(2, ahead=3600), "gloo:", "other ")]
    with pytest.raises(DataError, match="they were recorded 3600 s apart"):
        load_trace(files(*alone))
    trace = load_trace(files(recorded(0, host_name="a"), recorded(2, ahead=60, host_name="b")))
    assert any(remark.startswith("the clock of rank 1 is moved by 60.00 s") for remark in trace.remarks)


@pytest.mark.parametrize("without", [(), ("distributedInfo",), ("distributedInfo", "host_name")])
def test_a_trace_beside_itself_packed_is_told(tmp_path, without):
    content = json.dumps(recorded(0, *without)).encode()
    (tmp_path / "a.json").write_bytes(content)
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match=r"a\.json and .*a\.json\.gz are the same trace twice: leave one out$"):
        load_trace([tmp_path])


def test_a_trace_of_a_rank_that_was_written_again_is_told():
    again = Text("1.json", json.dumps(recorded(0), indent=1))
    with pytest.raises(DataError, match=r"^0.json and 1.json are the same trace twice: leave one out$"):
        load_trace([*files(recorded(0)), again])


@pytest.mark.parametrize("without", [(), ("distributedInfo",), ("distributedInfo", "host_name")])
def test_cycles_without_annotated_steps_say_so(without):
    second = renamed(recorded(1, *without), "ProfilerStep#", "step ")
    with pytest.raises(DataError, match=r"both of rank 0, and 1.json has no annotated steps \(ProfilerStep#N\)"):
        load_trace(files(recorded(0, *without), second))


def test_cycles_that_share_steps_are_none():
    """Steps 0 to 2, then 1 to 3 recorded later."""
    job = Job(late=(0, 0), clocks=(0, 0))
    later = cycle(job, 0, 1)
    text = re.sub(r"(?<=ProfilerStep#)\d+", lambda digits: str(int(digits[0]) - 9), later.content)
    with pytest.raises(DataError, match="not cycles of one schedule"):
        load_trace([cycle(job, 0, 0), Text("later.json", text)])
