"""Processes that train or measure together: their meeting, and the end of each if something goes wrong.

Every wait is bounded: torch is given a time limit for meeting and for every collective, and a watching thread ends the
process where that limit does not (a main thread that sits in a collective sees no signal). Each rank saves what there
is, and says in one line what happened; a process that failed ends at once, since tearing down a broken process group
may hang.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, NamedTuple, NoReturn, TypeVar

from osfmodel.entities.display import show_time
from osfmodel.entities.errors import JobError, OsfError, StoppedError, UsageError

GRACE = 3.0
"""Seconds for the main thread to end by itself after a signal, and for a thread to save results."""
MARGIN = 10.0
"""Seconds without progress, beyond torch's own time limit, after which a rank is ended."""
TICK = 0.2
"""Seconds between two checks of the watching thread."""
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
PARENT = os.getppid()
"""The process that started this one, noted early: loading torch takes seconds, in which torchrun may end."""
LOST = ("closed by peer", "connection reset", "broken pipe", "timed out", "timeout", "gloo", "nccl", "socket", "store")
"""Words, in lower case, by which messages of torch tell that another rank is missing."""


Made = TypeVar("Made")


class Voice(NamedTuple):
    """Rank 0's output: progress (only on a terminal), and lines that are always printed."""

    progress: Callable[[str], None]
    line: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Place:
    """One process among ``world``: its rank, its device, and its backend.

    ``per_host``: ranks on this host; ``local_rank``: its number among them
    """

    rank: int
    world: int
    local_rank: int
    address: str
    per_host: int = 1
    backend: str = "gloo"
    device: str = "cpu"

    def on(self, backend: str | None) -> Place:
        """This place with a backend, and the device that goes with it. None: nccl with a GPU, else gloo.

        Raises UsageError if PyTorch, or this host, lacks the backend.
        """
        import torch

        if not torch.distributed.is_available():
            raise UsageError("this PyTorch has no torch.distributed: install another")
        usable = _gpus()
        if (backend or ("nccl" if usable else "gloo")) != "nccl":
            return replace(self, backend="gloo", device="cpu")
        if not usable:
            raise UsageError("--backend nccl needs CUDA and a PyTorch with NCCL: use --backend gloo")
        if self.local_rank >= usable:
            raise UsageError(
                f"rank {self.rank} needs GPU {self.local_rank}, but this host has {usable}: start fewer ranks on "
                "it, or use --backend gloo"
            )
        return replace(self, backend="nccl", device=f"cuda:{self.local_rank}")


def require_torch(command: str) -> None:
    """Raise UsageError if PyTorch is not installed; if it is, keep it from logging what it raises as well."""
    if find_spec("torch") is None:
        raise UsageError(f"{command} needs PyTorch: pip install 'osfmodel[torch]'")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # pages of stack; what matters is raised, and said here


def place_of(environment: Mapping[str, str], command: str, least: int = 1) -> Place:
    """The place that a launcher gave us, still without backend and device. Needs no PyTorch.

    Raises UsageError where the launcher's variables are missing or contradict each other, or there are fewer than
    ``least`` ranks.
    """
    missing = [name for name in NEEDED if not environment.get(name)]
    if missing:
        raise UsageError(
            f"{', '.join(missing)} not set: start this under torchrun, e.g. "
            f"torchrun --nproc-per-node 2 -m osfmodel {command} ..., or set {', '.join(NEEDED[:-1])} and {NEEDED[-1]}"
        )
    rank, world, port = (_whole(environment, name) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    if not 0 <= rank < world:
        raise UsageError(f"RANK is {rank} and WORLD_SIZE {world}: ranks go from 0 to WORLD_SIZE - 1")
    if world < least:
        raise UsageError(
            f"osf {command} needs at least {least} ranks, WORLD_SIZE is {world}: start it with "
            f"torchrun --nproc-per-node {least}"
        )
    local = _whole(environment, "LOCAL_RANK") if environment.get("LOCAL_RANK") else rank
    per_host = _whole(environment, "LOCAL_WORLD_SIZE") if environment.get("LOCAL_WORLD_SIZE") else 1
    return Place(rank, world, local, f"{environment['MASTER_ADDR']}:{port}", per_host)


def _whole(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except ValueError:
        raise UsageError(f"{name} is {environment[name]!r}: it must be a whole number") from None


def _gpus() -> int:
    """Number of GPUs of this host that NCCL can use."""
    import torch

    usable = torch.cuda.is_available() and torch.distributed.is_nccl_available()
    return int(torch.cuda.device_count()) if usable else 0


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
        raise not_met(place, limit, error) from None


def not_met(place: Place, limit: float, error: Exception | None = None) -> JobError:
    """The error for a meeting that failed with ``error``, or did not end."""
    text = str(error)
    if "EADDRINUSE" in text or "ddress already in use" in text:
        return JobError(f"the port of {place.address} is in use: choose another (torchrun --master-port, MASTER_PORT)")
    said = "" if error is None else f" torch says: {_first_line(error)}"
    return JobError(
        f"not all {place.world} workers met at {place.address} within {show_time(limit)}: is that host reachable, the "
        f"port free, and is every rank started (WORLD_SIZE is {place.world})?{said}"
    )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    without_place = re.sub(r"^(\[\S+:\d+\] ?)+", "", lines[0]) if lines else type(error).__name__
    return without_place[:150].rstrip(". ")


def group(limit: float) -> Any:
    """A process group of all ranks over CPU, with at most ``limit`` seconds for each collective."""
    from datetime import timedelta

    import torch.distributed as dist

    return dist.new_group(backend="gloo", timeout=timedelta(seconds=limit))


def require_agreement(what: str) -> None:
    """Raise UsageError unless every rank had the same request."""
    import torch.distributed as dist

    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, what)
    other = [rank for rank, text in enumerate(found) if text != found[0]]
    if other:
        said = f"rank {other[0]} was started with different arguments from rank 0"
        raise UsageError(f"{said}: give all ranks the same arguments")


def explained(error: Exception, doing: str) -> JobError:
    """The error for an exception of torch or a model while ``doing``: another worker was lost, or this one failed."""
    text = f"{type(error).__name__} {error}".lower()
    if any(sign in text for sign in LOST):
        return JobError(f"lost another worker while {doing}: it ended or stopped answering ({_first_line(error)})")
    return JobError(f"failed while {doing}: {type(error).__name__}: {_first_line(error)}")


def end_now(rank: int, message: str, code: int) -> NoReturn:
    """Print one line about the error and end this process, without tearing anything down."""
    with suppress(Exception):  # closed, or nobody reads it
        sys.stdout.flush()
    with suppress(OSError):
        # In one piece: ranks share a stderr, and lines that are written in two get mixed up there.
        os.write(2, f"osf: rank {rank}: {' '.join(message.split())}\n".encode())
    os._exit(code)


class Watchdog:
    """A thread that bounds every wait: ``with Watchdog(...) as watch: watch.beat("doing this")``.

    Between two beats at most ``patience`` seconds may pass. SIGINT and SIGTERM raise StoppedError in the main thread;
    if that does not end the process soon, the watching thread does. Whichever of them ends the process calls ``saving``
    before, once, which saves the results so far; ``kept`` is the last line's remark on them. ``telling`` receives
    what begins.
    """

    def __init__(self, rank: int, patience: float) -> None:
        self.rank, self.patience, self.kept = rank, patience, ""
        self.saving: Callable[[], None] = no_save
        self.telling: Callable[[str], None] = no_listener
        self.doing = "starting"
        self.last = time.monotonic()
        self.stuck: Exception | None = None
        self.signalled: tuple[str, float] | None = None
        self._done, self._ending = threading.Event(), threading.Lock()
        self._parent = PARENT if "TORCHELASTIC_RUN_ID" in os.environ else None
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._before: dict[int, Any] = {}
        self._interrupted = False

    def __enter__(self) -> Watchdog:
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
        """Note progress: ``doing`` names the next step, as in "measuring the cluster"."""
        if doing != self.doing:
            self.telling(doing)
        self.doing, self.last = doing, time.monotonic()

    @contextmanager
    def allowing(self, seconds: float, stuck: Exception | None = None) -> Iterator[None]:
        """Allow another patience inside, and raise ``stuck`` when it ends."""
        before, self.patience, self.stuck = self.patience, seconds, stuck
        try:
            yield
        finally:
            self.beat(self.doing)
            self.patience, self.stuck = before, None

    def end(self, message: str, code: int) -> NoReturn:
        """Save the results, say what happened and end this process."""
        self._interrupted = True  # torchrun sends SIGTERM when another rank failed, which must not break off the saving
        if self._ending.acquire(timeout=GRACE):  # never let go: who comes second waits for the end, but not for ever
            with suppress(Exception):
                self.saving()
        end_now(self.rank, f"{message}{self.kept}", code)

    def _interrupt(self, number: int, frame: object) -> None:
        if not self._interrupted:
            self._interrupted = True
            raise StoppedError(self._stopped(signal.Signals(number).name))

    def _stopped(self, name: str) -> str:
        why = "" if name == "SIGINT" else ": another rank failed, or somebody ended the run"
        return f"stopped by {name} while {self.doing}{why}"

    def _look(self) -> None:
        while not self._done.wait(TICK):
            now = time.monotonic()
            self._hear(now)
            if self.signalled and now - self.signalled[1] > GRACE:
                self.end(self._stopped(self.signalled[0]), StoppedError.exit_code)
            if self._parent is not None and os.getppid() != self._parent:
                self.end(f"torchrun exited while {self.doing}, so this rank stops: see torchrun's own output", 1)
            if now - self.last > self.patience:
                waited = f"nothing went on for {show_time(self.patience)} while {self.doing}"
                self.end(str(self.stuck or f"{waited}: another worker or the network is stuck"), 1)

    def _hear(self, now: float) -> None:
        try:
            numbers = self._heard.recv(64)
        except BlockingIOError:
            return
        for number in numbers:
            if self.signalled is None and number in self._before:
                self.signalled = signal.Signals(number).name, now


def no_save() -> None:
    """No-op: nothing to save."""


def no_listener(doing: str) -> None:
    """No-op: no listener for progress."""


def together(place: Place, limit: float, work: Callable[[Watchdog], Made]) -> Made:
    """Join the other ranks, do ``work``, leave. A rank that fails on the way ends at once and prints why.

    ``limit``: seconds for meeting and for each collective. Whatever torch or a model raises is told as having come up
    in what the watch was last told.
    """
    with Watchdog(place.rank, limit + MARGIN) as watch:
        try:
            watch.beat(f"waiting for {place.world} workers to meet at {place.address}")
            # torch waits without end for a greeting where something else listens on its port.
            with watch.allowing(2 * limit, not_met(place, 2 * limit)):
                join(place, limit)
            made = work(watch)
            _part()
        except OsfError as error:
            watch.end(str(error), error.exit_code)
        except Exception as error:
            watch.end(str(explained(error, watch.doing)), 1)
    return made


def _part() -> None:
    import torch.distributed as dist

    dist.barrier()
    dist.destroy_process_group()
