"""How ranks that run together find their place, and what is said when that or their work goes wrong."""

from __future__ import annotations

import signal
import threading

import pytest

from osfmodel.entities.errors import JobError, StoppedError, UsageError
from osfmodel.runtime import job
from osfmodel.runtime.job import Place, Watchdog, explained, not_met, place_of

RANK = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "here", "MASTER_PORT": "29500"}
PLACE = Place(0, 2, 0, "10.0.0.1:29500")


class EndedError(Exception):
    """Stands in for the end of the process."""


@pytest.fixture
def ends(monkeypatch):
    """Ends of this process that were prevented: (rank, message, code)."""
    found = []

    def end_now(*arguments):
        found.append(arguments)
        raise EndedError(*arguments)

    monkeypatch.setattr(job, "end_now", end_now)
    return found


def test_a_place_is_what_the_launcher_says():
    assert place_of(RANK, "run") == Place(1, 4, 1, "here:29500")
    two_hosts = {**RANK, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    assert place_of(two_hosts, "run", least=4) == Place(1, 4, 0, "here:29500", 2)


@pytest.mark.parametrize("command", ["run", "tune --live", "bench"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": "", "MASTER_PORT": ""}, "RANK, MASTER_PORT not set: start this under torchrun, e.g. .* {command} "),
        ({"MASTER_PORT": "any"}, "MASTER_PORT is 'any': it must be a whole number"),
        ({"RANK": "4"}, "RANK is 4 and WORLD_SIZE 4: ranks go from 0"),
        ({"RANK": "-1"}, "RANK is -1 and WORLD_SIZE 4: ranks go from 0"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, "osf {command} needs at least 2 ranks, WORLD_SIZE is 1"),
    ],
)
def test_what_a_launcher_cannot_mean(command, changes, message):
    with pytest.raises(UsageError, match=message.format(command=command)):
        place_of({**RANK, **changes}, command, least=2)


@pytest.mark.parametrize(
    ("place", "backend", "gpus", "found"),
    [
        (PLACE, None, 0, ("gloo", "cpu")),
        (PLACE, "gloo", 8, ("gloo", "cpu")),
        (PLACE, None, 8, ("nccl", "cuda:0")),
        (Place(9, 16, 1, "a:1"), "nccl", 8, ("nccl", "cuda:1")),
        (PLACE, "nccl", 0, "--backend nccl needs CUDA and a PyTorch with NCCL: use --backend gloo"),
        (Place(9, 16, 8, "a:1"), None, 8, "rank 9 needs GPU 8, but this host has 8: start fewer ranks"),
    ],
)
def test_backend_and_device(monkeypatch, place, backend, gpus, found):
    pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    monkeypatch.setattr(job, "_gpus", lambda: gpus)
    if isinstance(found, str):
        with pytest.raises(UsageError, match=found):
            place.on(backend)
    else:
        there = place.on(backend)
        assert (there.backend, there.device) == found


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("The server socket has failed ... code: -98, name: EADDRINUSE", "the port of 10.0.0.1:29500 is in use"),
        ("Timed out after 11 seconds waiting for clients.\n1/2 clients joined.", "within 3.000 s: is that host "),
        ("wait timeout after 3000ms, keys: /default_pg/0", "not all 2 workers met at 10.0.0.1:29500"),
    ],
)
def test_why_ranks_did_not_meet(text, meaning):
    error = not_met(PLACE, 3, RuntimeError(text))
    assert meaning in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        (
            "[/a/gloo/transport/tcp/pair.cc:553] [1] Connection closed by peer [10.0.0.1]:1",
            "lost another worker while timing step 3: it ended or stopped answering",
        ),
        ("shapes do not\nfit", "failed while timing step 3: RuntimeError: shapes do not"),
        ("", "failed while timing step 3: RuntimeError"),
    ],
)
def test_torch_in_one_line(text, meaning):
    error = explained(RuntimeError(text), "timing step 3")
    assert isinstance(error, JobError)
    assert meaning in str(error)
    assert "\n" not in str(error)
    assert "pair.cc" not in str(error)


def test_what_there_is_is_saved_before_the_end_and_named_in_its_line(ends):
    with Watchdog(3, 60) as watch:

        def save():
            watch.kept = "; 2 are in a.json"

        watch.saving = save
        with pytest.raises(EndedError, match=r"2 are in a\.json"):
            watch.end("failed", 1)
    assert ends == [(3, "failed; 2 are in a.json", 1)]


@pytest.mark.parametrize("broken", [False, True])
def test_the_last_line_is_written_at_once_and_the_end_comes_anyway(monkeypatch, broken):
    """Ranks share a stderr: what comes in two pieces gets mixed up there."""
    written = []

    def write(descriptor, text):
        written.append((descriptor, text))
        if broken:
            raise BrokenPipeError

    def leave(code):
        raise EndedError(code)

    monkeypatch.setattr(job.os, "write", write)
    monkeypatch.setattr(job.os, "_exit", leave)
    monkeypatch.setattr(job.sys, "stdout", None)
    with pytest.raises(EndedError, match="3"):
        job.end_now(1, "two\nlines", 3)
    assert written == [(2, b"osf: rank 1: two lines\n")]


def test_a_torchrun_that_ended_before_the_watch_began_is_missed(ends, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda found: None)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setattr(job, "PARENT", -1)
    with Watchdog(2, 60) as watch:
        watch._thread.join(10)
    assert ends == [(2, "torchrun exited while starting, so this rank stops: see torchrun's own output", 1)]


def test_a_saving_that_fails_changes_nothing_and_is_not_done_twice(ends, monkeypatch):
    monkeypatch.setattr(job, "GRACE", 0.1)
    calls = []

    def save():
        calls.append(1)
        raise OSError

    with Watchdog(0, 60) as watch:
        watch.saving = save
        for code in (1, 2):
            with pytest.raises(EndedError, match=f"'failed', {code}"):
                watch.end("failed", code)
    assert [end[-1] for end in ends] == [1, 2]
    assert len(calls) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_does_not_disturb_the_end(ends, number):
    saved = []

    def save():
        signal.raise_signal(signal.SIGTERM)
        saved.append(1)

    with Watchdog(0, 60) as watch:
        watch.beat("timing step 3")
        watch.saving = save
        with pytest.raises(StoppedError, match=f"stopped by {number.name} while timing step 3"):
            signal.raise_signal(number)
        with pytest.raises(EndedError, match="stopped"):
            watch.end("stopped", StoppedError.exit_code)
    assert saved == [1]


def test_the_watching_thread_ends_what_stands_still(ends, monkeypatch):
    """In the words of whoever allowed so little, and otherwise in its own."""
    monkeypatch.setattr(threading, "excepthook", lambda found: None)  # the end that a process would have
    saved = []
    for stuck, message in (
        (JobError("nobody came"), "nobody came"),
        (None, "nothing went on for 10.00 ms while timing step 3"),
    ):
        with Watchdog(0, 60) as watch:
            watch.saving = lambda: saved.append(1)
            watch.beat("timing step 3")
            with watch.allowing(0.01, stuck):
                watch._thread.join(10)
        assert ends[-1][1].startswith(message)
        assert ends[-1][-1] == 1
    assert saved == [1, 1]


def test_a_stopped_run_ends_as_a_shell_expects():
    assert StoppedError("").exit_code == 128 + signal.SIGINT
