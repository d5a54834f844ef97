"""Turns under Horovod without Horovod: how often it repeats, what it hears, where ranks are, whose failure is told."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from osfmodel.entities.errors import JobError, UsageError
from osfmodel.runtime import horovod
from osfmodel.runtime.bench import LEAST, POINT_SECONDS, WARM_UPS, repeats
from osfmodel.runtime.horovod import STARTING, Failure, HorovodTurns, error_of, process, require_even
from osfmodel.runtime.job import Place, Watchdog


@pytest.mark.parametrize(
    ("seconds", "most", "count"),
    [
        (POINT_SECONDS / 8, 20, 8),
        (POINT_SECONDS, 20, LEAST),
        (100 * POINT_SECONDS, 20, LEAST),
        (100 * POINT_SECONDS, 2, 2),
        (0.0, 20, 20),
    ],
)
def test_a_slow_network_gets_fewer_repeats(seconds, most, count):
    assert repeats(seconds, most) == count


@pytest.mark.parametrize(("task", "other"), [("exchange", "queued"), ("copies", "fused")])
def test_every_message_is_told_and_takes_no_more_time_than_there_is(monkeypatch, task, other):
    """By a clock of one half of the time per message: least repeats, for each of which both kinds are heard of."""
    told = []
    monkeypatch.setattr(process, "_tensors", lambda count, size: [size] * count)
    monkeypatch.setattr(process, "_once", lambda hvd, tensors: POINT_SECONDS / 2)
    monkeypatch.setattr(process, "_least", lambda hvd, count: count)
    found = process.TASKS[task](None, lambda **words: told.append(words), [64, 128], 10)
    assert found == [
        {"bytes": size, "alone": [POINT_SECONDS / 2] * LEAST, other: [POINT_SECONDS / 2] * LEAST} for size in (64, 128)
    ]
    assert len(told) == 2 * 2 * (WARM_UPS + LEAST)


@pytest.mark.parametrize(("size", "queued"), [(1024, 33), (1 << 20, 17), (64 << 20, 5)])
def test_a_message_is_timed_by_a_train_behind_the_first(monkeypatch, size, queued):
    """Four messages of a size that fits into a buffer would all go into it."""
    counts = []
    monkeypatch.setattr(process, "_tensors", lambda count, size: counts.append(count) or [size] * count)
    monkeypatch.setattr(process, "_once", lambda hvd, tensors: 1.0)
    monkeypatch.setattr(process, "_least", lambda hvd, count: count)
    process.exchange(None, lambda **words: None, [size], 1)
    assert counts == [1, queued]
    assert process.beside(size) == queued - 1


def turns(place):
    return HorovodTurns(place, 60.0, Watchdog(place.rank, 7.0))


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (['{"iteration": 0}', '{"result": [1, 2]}'], ([1, 2], None)),
        (['{"error": "no such model", "kind": "UsageError"}'], (None, Failure("no such model", "UsageError"))),
        (['{"iteration": 0}', '{"error": "ValueError: odd"}'], (None, Failure("ValueError: odd"))),
        ([], (None, Failure("RuntimeError: gone"))),
    ],
)
def test_what_a_process_says(monkeypatch, lines, found):
    """The start may take longer than any later step."""
    one = turns(Place(0, 1, 0, "here:1"))
    patience = []

    class Answers(io.StringIO):
        def readline(self, *size):
            patience.append(one.watch.patience)
            return super().readline(*size)

        def __next__(self):
            patience.append(one.watch.patience)
            return super().__next__()

    def start(command, *, stderr, **options):
        stderr.write("loading\nRuntimeError: gone\n")
        answers = Answers("".join(f"{line}\n" for line in lines))
        return SimpleNamespace(stdin=io.StringIO(), stdout=answers, wait=lambda: 1, kill=lambda: None)

    monkeypatch.setattr(horovod.subprocess, "Popen", start)
    assert one._process({}, {"task": "idle"}) == found
    assert patience[0] == 7.0 + STARTING
    assert set(patience[1:]) == {7.0}


def test_ranks_of_hosts_with_equally_many_are_told_where_they_are():
    assert require_even([(0, 2), (1, 2), (0, 2), (1, 2)]) is None
    words = turns(Place(3, 4, 1, "[fe80::1]:29500", 2))._meeting(5)
    assert words["HOROVOD_LOCAL_RANK"] == "1"
    assert (words["HOROVOD_CROSS_RANK"], words["HOROVOD_CROSS_SIZE"]) == ("1", "2")
    assert words["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "fe80::1"


def test_a_launcher_that_does_not_tell_of_hosts_has_one_rank_on_each():
    assert require_even([(0, 1), (1, 1), (2, 1)]) is None
    words = turns(Place(2, 3, 2, "::1:29500"))._meeting(5)
    assert (words["HOROVOD_LOCAL_RANK"], words["HOROVOD_CROSS_RANK"], words["HOROVOD_CROSS_SIZE"]) == ("0", "2", "3")
    assert words["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "::1"


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ([(0, 2), (1, 2), (0, 2)], "rank 0 has LOCAL_RANK 0 and LOCAL_WORLD_SIZE 2, WORLD_SIZE 3: Horovod needs"),
        ([(0, 2), (1, 2), (0, 1), (0, 1)], "rank 2 has LOCAL_RANK 0 and LOCAL_WORLD_SIZE 1, WORLD_SIZE 4"),
        ([(0, 0)], "LOCAL_WORLD_SIZE 0"),
        ([(0, 2), (1, 2), (2, 2), (3, 2)], "rank 2 has LOCAL_RANK 2 and LOCAL_WORLD_SIZE 2: .* that would be 0"),
        ([(0, 2), (0, 2), (1, 2), (1, 2)], "rank 1 has LOCAL_RANK 0 .* host by host, so that would be 1"),
    ],
)
def test_other_ranks_are_refused(places, said):
    with pytest.raises(UsageError, match=said):
        require_even(places)


def test_the_error_that_a_rank_raised_is_told_by_all():
    lost = Failure("RuntimeError: connection closed by peer")
    with pytest.raises(UsageError, match=r"no module 'gone' \(on rank 1 while running repeat 1\)"):
        raise error_of([(0, lost), (1, Failure("no module 'gone'", "UsageError"))], "running repeat 1")
    with pytest.raises(
        JobError, match="Horovod failed on rank 0 while running repeat 1: RuntimeError: connection closed"
    ):
        raise error_of([(0, lost), (1, lost)], "running repeat 1")
    with pytest.raises(JobError, match="theirs"):
        raise error_of([(1, Failure("theirs", "ErrorOfTheirs"))], "running repeat 1")
