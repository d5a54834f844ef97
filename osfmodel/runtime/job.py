"""Joining the other ranks and leaving them, with errors that a person can act on."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from osfmodel.errors import JobError, UsageError

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
MEANINGS = (
    (("eaddrinuse", "address already in use"), "port {port} is in use: give torchrun another --master-port"),
    (("closed by peer", "connection reset", "broken pipe", "socket closed", "recvvalue failed"),
     "another rank is gone, or the network between them"),
    (("timed out", "timeout", "no route", "unreachable", "refused"),
     "not all of the {world} ranks answered within {timeout:g} s at {address}:{port}"),
)  # fmt: skip
"""Parts of torch's messages, in lower case, and what they mean to whoever started the job."""


@dataclass(frozen=True, slots=True)
class Job:
    """This rank among the others.

    per_host: ranks on each host
    backend:  ``gloo`` or ``nccl``
    device:   where tensors live
    control:  a process group over CPU, beside the one that is measured, for barriers and results
    beat:     is called at every barrier and gathering: something goes on
    """

    rank: int
    workers: int
    per_host: int
    backend: str
    device: Any
    control: Any
    beat: Callable[[], None] = lambda: None

    def barrier(self) -> None:
        """Wait for all ranks."""
        import torch.distributed as dist

        self.beat()
        dist.barrier(group=self.control)

    def gather(self, value: Any) -> list[Any]:
        """What every rank has, on every rank."""
        import torch.distributed as dist

        self.beat()
        found = [None] * self.workers
        dist.all_gather_object(found, value, group=self.control)
        return found


def place(command: str, least: int = 1) -> dict[str, str]:
    """What torchrun says about this rank, checked.

    Raises UsageError where ``command`` was started without it, or with fewer than ``least`` ranks.
    """
    missing = [name for name in NEEDED if not os.environ.get(name)]
    if missing:
        how = f"torchrun --nproc-per-node 2 -m osfmodel {command}"
        raise UsageError(f"{command} runs on every rank: start it as {how} ({', '.join(missing)} not set)")
    found = {name: os.environ[name] for name in NEEDED}
    found["LOCAL_WORLD_SIZE"] = os.environ.get("LOCAL_WORLD_SIZE", "1")
    found["LOCAL_RANK"] = os.environ.get("LOCAL_RANK", "0")
    for name, value in found.items():
        if name != "MASTER_ADDR" and not value.isdecimal():
            raise UsageError(f"{name} is {value!r}: it must be a whole number")
    if not int(found["RANK"]) < int(found["WORLD_SIZE"]):
        raise UsageError(f"RANK {found['RANK']} does not exist among {found['WORLD_SIZE']} ranks, which count from 0")
    if int(found["WORLD_SIZE"]) < least:
        raise UsageError(f"{command} needs {least} ranks or more: there is {found['WORLD_SIZE']}")
    return found


@contextlib.contextmanager
def joined(command: str, backend: str | None, timeout: float) -> Iterator[Job]:
    """The job while it lasts; ``backend`` None: NCCL with GPUs, else gloo. Raises UsageError, JobError.

    Nothing waits longer than ``timeout`` seconds for another rank.
    """
    from datetime import timedelta

    here = place(command)
    torch = _torch(command)
    dist = torch.distributed
    chosen = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    limit = timedelta(seconds=timeout)
    try:
        device = _device(torch, chosen, int(here["LOCAL_RANK"]))
        control = _within(2 * timeout, partial(_groups, dist, chosen, limit))
        rank, world, per_host = (int(here[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
        yield Job(rank, world, per_host, chosen, device, control)
    except (RuntimeError, ValueError) as error:
        raise job_error(error, here, timeout) from error
    finally:
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()


def _groups(dist: Any, backend: str, limit: Any) -> Any:
    """Found the default group, and the one over CPU, which is returned."""
    dist.init_process_group(backend, timeout=limit)
    return dist.new_group(backend="gloo", timeout=limit)


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """What ``call`` returns or raises; RuntimeError where that takes longer than ``seconds``.

    torch waits without end for a greeting where something else listens on its port. In a thread of its own, which is
    left behind then; so Ctrl-C is heard at once, too.
    """
    outcome: list[tuple[Any, Exception | None]] = []

    def work() -> None:
        try:
            outcome.append((call(), None))
        except Exception as error:
            outcome.append((None, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise RuntimeError("timed out while joining")
    value, error = outcome[0]
    if error is not None:
        raise error
    return value


def _torch(command: str) -> Any:
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # its errors are raised too, and told in one line
    try:
        import torch
        import torch.distributed
    except ImportError:
        raise UsageError(f"{command} needs PyTorch: pip install torch") from None
    if not torch.distributed.is_available():
        raise UsageError(f"{command} needs a PyTorch with torch.distributed")
    return torch


def _device(torch: Any, backend: str, local_rank: int) -> Any:
    if backend != "nccl":
        return torch.device("cpu")
    if not torch.cuda.is_available() or not torch.distributed.is_nccl_available():
        raise UsageError("--backend nccl needs CUDA and a PyTorch with NCCL: take gloo")
    if local_rank >= torch.cuda.device_count():
        raise UsageError(f"rank {local_rank} of this host has no GPU: there are {torch.cuda.device_count()}")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def job_error(error: Exception, here: dict[str, str], timeout: float) -> JobError:
    """What torch says in many lines, in one, with what it means first where that is known."""
    text = re.sub(r"^(\[\S+:\d+\] ?)+", "", " ".join(str(error).split()))
    known = next((meaning for marks, meaning in MEANINGS if any(mark in text.lower() for mark in marks)), None)
    facts = {"port": here["MASTER_PORT"], "address": here["MASTER_ADDR"], "world": here["WORLD_SIZE"]}
    meaning = "" if known is None else known.format(timeout=timeout, **facts) + ": "
    return JobError(f"rank {here['RANK']}: {meaning}{text[:200]}")
