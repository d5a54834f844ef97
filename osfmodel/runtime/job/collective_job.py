"""The process group of a benchmark: this rank, the others, and ways to wait for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from osfmodel.runtime.job.ranks import Place


@dataclass(frozen=True, slots=True)
class CollectiveJob:
    """This rank among the others.

    per_host: ranks on each host
    backend:  ``gloo`` or ``nccl``
    device:   where tensors live
    limit:    seconds that a collective may take
    control:  a process group over CPU, beside the one that is measured, for barriers and results
    beat:     is called at every barrier and gathering, as a sign of progress
    """

    rank: int
    workers: int
    per_host: int
    backend: str
    device: Any
    limit: float
    control: Any
    beat: Callable[[], None] = lambda: None

    def barrier(self) -> None:
        """Wait for all ranks."""
        import torch.distributed as dist

        self.beat()
        dist.barrier(group=self.control)

    def gather(self, value: Any) -> list[Any]:
        """The value of every rank, on every rank."""
        import torch.distributed as dist

        self.beat()
        found = [None] * self.workers
        dist.all_gather_object(found, value, group=self.control)
        return found


def job_of(place: Place, limit: float, control: Any, beat: Callable[[], None]) -> CollectiveJob:
    """The job of a rank that has met the others; ``limit``, ``control`` and ``beat`` as in CollectiveJob."""
    import torch

    device = torch.device(place.device)
    return CollectiveJob(place.rank, place.world, place.per_host, place.backend, device, limit, control, beat)


def threads_of(backend: str) -> int | None:
    """Collectives of the process group that run at once: gloo's worker threads, if this torch says; NCCL has one
    stream per communicator."""
    import torch
    import torch.distributed as dist

    if backend == "nccl":
        return 1
    try:
        return int(dist.group.WORLD._get_backend(torch.device("cpu")).options._threads)
    except (AttributeError, RuntimeError):
        return None
