"""This rank as what measures collectives sees it: who the others are, and how to wait for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from osfmodel.runtime.ranks import Place


@dataclass(frozen=True, slots=True)
class Job:
    """This rank among the others.

    per_host: ranks on each host
    backend:  ``gloo`` or ``nccl``
    device:   where tensors live
    limit:    seconds that a collective may take
    control:  a process group over CPU, beside the one that is measured, for barriers and results
    beat:     is called at every barrier and gathering: something goes on
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
        """What every rank has, on every rank."""
        import torch.distributed as dist

        self.beat()
        found = [None] * self.workers
        dist.all_gather_object(found, value, group=self.control)
        return found


def job_of(place: Place, limit: float, control: Any, beat: Callable[[], None]) -> Job:
    """The job of a rank that has met the others; ``limit``, ``control`` and ``beat`` as in Job."""
    import torch

    device = torch.device(place.device)
    return Job(place.rank, place.world, place.per_host, place.backend, device, limit, control, beat)
