"""Several processes that run together: how they meet, and how each of them ends when something goes wrong.

Every wait is bounded: torch is given a time limit for meeting and for every collective, and a watching thread ends the
process where that limit does not (a main thread that sits in a collective sees no signal). Each rank says in one line
what happened; a process that failed ends at once, since tearing down a broken process group may hang.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NoReturn, TypeVar

from osfmodel.errors import JobError, OsfError, StoppedError, UsageError
from osfmodel.units import show_time

GRACE = 3.0
"""Seconds that the main thread has to end by itself after a signal, and a collective beyond its own time limit."""
MARGIN = 10.0
"""Seconds without progress, beyond torch's own time limit, that end a rank."""
TICK = 0.2
"""Seconds between two looks of the watching thread."""
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
LOST = ("closed by peer", "connection reset", "broken pipe", "timed out", "timeout", "gloo", "nccl", "socket", "store")
"""What torch's messages say where it is the others that are missing, in lower case."""


Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Place:
    """One process among ``world``: which it is, which device it computes on, and over what it talks to the others."""

    rank: int
    world: int
    local_rank: int
    address: str
    backend: str = "gloo"
    device: str = "cpu"


def require_torch(command: str) -> None:
    """Raise UsageError where PyTorch is not installed; where it is, keep what it logs to what is wrong."""
    if find_spec("torch") is None:
        raise UsageError(f"{command} needs PyTorch: pip install 'osfmodel[torch]'")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # its warnings are pages of stack; what matters is said here


def place_of(environment: Mapping[str, str], backend: str | None = None) -> Place:
    """The place that a launcher gave us. ``backend`` None means nccl where there is a GPU, else gloo.

    Raises UsageError where the launcher's variables are missing or contradict each other.
    """
    missing = [name for name in NEEDED if not environment.get(name)]
    if missing:
        raise UsageError(
            f"{', '.join(missing)} not set: start this under torchrun, e.g. "
            "torchrun --nproc-per-node 2 -m osfmodel run ..., or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        )
    rank, world, port = (_whole(environment, name) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    if not 0 <= rank < world:
        raise UsageError(f"RANK is {rank} and WORLD_SIZE {world}: ranks go from 0 to WORLD_SIZE - 1")
    local = _whole(environment, "LOCAL_RANK") if environment.get("LOCAL_RANK") else rank
    address = f"{environment['MASTER_ADDR']}:{port}"
    chosen = backend or ("nccl" if _gpus() else "gloo")
    if chosen == "nccl" and local >= _gpus():
        raise UsageError(f"rank {rank} would need GPU {local}, and there are {_gpus()} here: use --backend gloo")
    return Place(rank, world, local, address, chosen, f"cuda:{local}" if chosen == "nccl" else "cpu")


def _whole(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except ValueError:
        raise UsageError(f"{name} is {environment[name]!r}: it must be a whole number") from None


def _gpus() -> int:
    import torch

    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


def join(place: Place, limit: float) -> None:
    """Meet the others within ``limit`` seconds, which also bounds every later collective. Raises JobError."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    if place.device != "cpu":
        torch.cuda.set_device(place.device)
    try:
        dist.init_process_group(place.backend, timeout=timedelta(seconds=limit))
    except Exception as error:  # torch has many, and no common base in all versions
        raise JobError(_not_met(place, limit, error)) from None


def _not_met(place: Place, limit: float, error: Exception) -> str:
    text = str(error)
    if "EADDRINUSE" in text or "ddress already in use" in text:
        return f"the port of {place.address} is in use: choose another (torchrun --master-port, or MASTER_PORT)"
    return (
        f"not all {place.world} workers met at {place.address} within {show_time(limit)}: is that host reachable, the "
        f"port free, and is every rank started (WORLD_SIZE is {place.world})? torch says: {_first_line(error)}"
    )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    without_place = re.sub(r"^\[\S+:\d+\] ", "", lines[0]) if lines else type(error).__name__
    return without_place[:150].rstrip(". ")


def require_agreement(what: str) -> None:
    """Raise UsageError unless every rank was asked for the same."""
    import torch.distributed as dist

    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, what)
    other = [rank for rank, text in enumerate(found) if text != found[0]]
    if other:
        raise UsageError(f"rank {other[0]} was asked for something else than rank 0: give all ranks the same arguments")


def explained(error: Exception, doing: str) -> JobError:
    """What torch or a model raised in the middle of a run, as a line that says whose fault it was."""
    text = f"{type(error).__name__} {error}".lower()
    if any(sign in text for sign in LOST):
        return JobError(f"lost another worker {doing}: it ended or stopped answering ({_first_line(error)})")
    return JobError(f"the model failed {doing}: {type(error).__name__}: {_first_line(error)}")


def end_now(rank: int, message: str, code: int) -> NoReturn:
    """Say what happened in one line and end this process, without tearing anything down."""
    sys.stdout.flush()
    print(f"osf: rank {rank}: {' '.join(message.split())}", file=sys.stderr, flush=True)
    os._exit(code)


class Watch:
    """A thread that bounds every wait: ``with Watch(rank, patience) as watch: watch.beat("doing this")``.

    Between two beats at most ``patience`` seconds may pass. SIGINT and SIGTERM raise StoppedError in the main thread;
    if that does not end the process soon, the watching thread does. ``kept`` is what its lines say of results so far.
    """

    def __init__(self, rank: int, patience: float) -> None:
        self.rank, self.patience, self.kept = rank, patience, ""
        self.doing = "starting"
        self.last = time.monotonic()
        self.signalled: tuple[str, float] | None = None
        self._done = threading.Event()
        self._parent = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Watch:
        # A signal may reach a thread of torch while the main one sits in a collective: the descriptor always hears it.
        self._heard, self._ear = socket.socketpair()
        for end in (self._heard, self._ear):
            end.setblocking(False)
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._interrupt)
        signal.set_wakeup_fd(self._ear.fileno(), warn_on_full_buffer=False)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._heard.close()
        self._ear.close()

    def beat(self, doing: str) -> None:
        """Something went on: ``doing`` says in which words a failure from now on is told."""
        self.doing, self.last = doing, time.monotonic()

    def _interrupt(self, number: int, frame: object) -> None:
        raise StoppedError(self._stopped(signal.Signals(number).name))

    def _stopped(self, name: str) -> str:
        why = "" if name == "SIGINT" else ": another rank failed, or somebody ended the run"
        return f"stopped by {name} {self.doing}{why}{self.kept}"

    def _look(self) -> None:
        while not self._done.wait(TICK):
            now = time.monotonic()
            self._hear(now)
            if self.signalled and now - self.signalled[1] > GRACE:
                end_now(self.rank, self._stopped(self.signalled[0]), StoppedError.exit_code)
            if self._parent is not None and os.getppid() != self._parent:
                end_now(self.rank, f"torchrun ended without us {self.doing}{self.kept}", 1)
            if now - self.last > self.patience:
                waited = f"nothing went on for {show_time(self.patience)} {self.doing}"
                end_now(self.rank, f"{waited}: another worker or the network is stuck{self.kept}", 1)

    def _hear(self, now: float) -> None:
        try:
            numbers = self._heard.recv(64)
        except BlockingIOError:
            return
        for number in numbers:
            if self.signalled is None and number in self._before:
                self.signalled = signal.Signals(number).name, now


def together(place: Place, limit: float, work: Callable[[Watch], Made]) -> Made:
    """Meet, do ``work``, part. A rank that fails from here on ends at once, with a line that says which it is.

    ``limit``: seconds for meeting and for each collective.
    """
    with Watch(place.rank, limit + MARGIN) as watch:
        try:
            watch.beat(f"while {place.world} workers were to meet at {place.address}")
            join(place, limit)
            made = work(watch)
            _part()
        except OsfError as error:
            end_now(place.rank, f"{error}{watch.kept if watch.kept not in str(error) else ''}", error.exit_code)
        except Exception as error:
            end_now(place.rank, f"{type(error).__name__} {watch.doing}: {error}{watch.kept}", 1)
    return made


def _part() -> None:
    import torch.distributed as dist

    dist.barrier()
    dist.destroy_process_group()
