"""Ends of messages on a host, whose library may close its note of one late."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from osfmodel.diagnosis.explain_trace import explain_trace
from osfmodel.formats import load_trace
from osfmodel.formats.kineto.collectives import Found
from osfmodel.formats.kineto.windows import Needs
from osfmodel.formats.traces import workload_of
from tests.live.explained import paths_of

COPY = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
NOTE = "gloo:all_reduce"
CLOSE = 2e-4
"""Seconds: what the last event of gloo's and the first of what needs it are apart."""


def message(issued, end, elements=10, dtype="float32", kind="all_reduce"):
    return Found(kind, issued + 1.0, end, issued, elements, dtype, "dims", "", None, 2)


def needs(copies=(), updates=(90.0,), accumulated=(10.0, 20.0, 30.0), busy=((0.0, 40.0),)):
    rows = [np.array(rows, dtype=float).reshape(-1, 2) for rows in (copies, busy)]
    return Needs((5.0, 40.0), np.array(accumulated), rows[0], np.array(updates), rows[1])


def ends(one, *found):
    return [message.end for message in one.ended(found)]


def test_a_message_had_ended_when_the_pause_before_its_copies_was_over():
    """Two gradients in the first bucket, one in the second; views of a bucket are made before its first copy."""
    copies = [(52, 53), (53, 54), (71, 72)]
    busy = [(0, 40), (50, 51), (52, 54), (70, 70.5), (71, 72)]
    one = needs(copies, busy=busy)
    assert ends(one, message(20.5, 88.0), message(30.5, 99.0)) == [50.0, 70.0]
    assert ends(one, message(20.5, 49.0), message(30.5, 69.0)) == [49.0, 69.0], "nothing is later than it was"


def test_without_a_pause_a_message_had_ended_when_it_was_copied():
    one = needs([(40, 41), (41, 42), (42, 43)], busy=[(0, 43)])
    assert ends(one, message(20.5, 88.0), message(30.5, 60.0)) == [40.0, 42.0]


def test_buckets_sent_out_of_order_are_not_cut_short():
    """The second was full first, so that both went at once: which copies are its own is not known."""
    one = needs([(52, 53), (53, 54), (71, 72)], busy=[(0, 40), (52, 54), (71, 89)])
    assert ends(one, message(30.5, 51.0), message(30.6, 80.0)) == [51.0, 80.0]
    assert ends(one, message(30.5, 51.0), message(30.6, 95.0)) == [51.0, 71.0], "but the optimizer needs it"


def test_copies_of_other_gradients_than_were_accumulated_tell_of_the_first_bucket_only():
    one = needs([(52, 53), (71, 72)], busy=[(0, 40), (52, 53), (71, 72)])
    assert ends(one, message(20.5, 80.0), message(30.5, 80.0)) == [52.0, 80.0]


def test_where_gradients_are_not_copied_the_longest_pause_before_the_optimizer_was_the_wait():
    """Views of a bucket are made after each wait; Python is a while on its way to the optimizer."""
    one = needs(busy=[(0, 40), (60, 61), (75, 76), (80, 82)])
    assert ends(one, message(20.5, 95.0), message(30.5, 50.0)) == [60.0, 50.0]
    assert ends(one, message(20.5, 95.0), message(30.5, 95.0)) == [60.0, 75.0], "they are waited for in their order"
    assert ends(one, message(77.0, 95.0)) == [90.0], "one that is sent after backward is not waited for before"


def test_what_needs_no_gradients_may_end_after_the_optimizer_began():
    one = needs()
    found = [message(2.0, 95.0), message(31.0, 95.0, dtype="int64"), message(31.0, 95.0, kind="broadcast")]
    assert ends(one, *found, message(91.0, 99.0)) == [95.0, 95.0, 95.0, 99.0]
    assert ends(needs(updates=()), message(31.0, 95.0)) == [95.0]
    assert ends(needs(updates=(35.0, 90.0)), message(31.0, 95.0), message(36.0, 95.0)) == [35.0, 90.0]


def _in_any(event, intervals):
    return any(start <= event.get("ts", -1) <= end for start, end in intervals)


def closed_late(path, folder, with_copies):
    """The file of a rank with the last message of each step closed 5 ms after the optimizer has begun."""
    made = json.loads(gzip.decompress(Path(path).read_bytes()))
    events = made["traceEvents"]
    updates = [one["ts"] for one in events if one["name"].startswith("Optimizer.step")]
    for update in updates:
        before = [one for one in events if one["name"] == NOTE and one["ts"] < update]
        last = max(before, key=lambda one: one["ts"])
        assert last["ts"] + last["dur"] < update
        last["dur"] = update + 5000 - last["ts"]
    if not with_copies:  # nor what they are made of
        gone = [(one["ts"], one["ts"] + one["dur"]) for one in events if one["name"] == COPY]
        made["traceEvents"] = [one for one in events if one["name"] == NOTE or not _in_any(one, gone)]
    file = folder / Path(path).name.removesuffix(".gz")
    file.write_text(json.dumps(made))
    return file


@pytest.mark.parametrize("with_copies", [True, False])
@pytest.mark.parametrize("job", ["healthy", "slow-link", "giant-bucket", "find-unused"])
def test_a_note_that_is_closed_late_changes_no_explanation(tmp_path, job, with_copies):
    first, second = paths_of(job)
    told = load_trace([Path(first), Path(second)])
    late = load_trace([Path(first), closed_late(second, tmp_path, with_copies)])
    was, now = explain_trace(told), explain_trace(late)
    for before, after in zip(was.ranks, now.ranks, strict=True):
        copied = before.parts.compute - after.parts.compute
        assert copied == 0 or not with_copies
        for part in ("transfer", "waiting", "held", "idle"):
            assert getattr(after.parts, part) == pytest.approx(getattr(before.parts, part), abs=CLOSE + copied), part
        assert after.work == pytest.approx(before.work, abs=CLOSE + copied)
    assert (now.cause, now.straggler) == (was.cause, was.straggler)
    assert workload_of(late).compute_time == pytest.approx(workload_of(told).compute_time, abs=1e-3)
