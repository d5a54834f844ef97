"""Collectives in flight, a limited number at a time, in one order: a plan's channels in a process group.

gloo: a group of our own with as many worker threads as there are channels. They serve one queue, so that the next
collective goes to whichever is free first, which is the network of the simulator; ranks match collectives by their
place in the queue, so they need not agree which thread that is. NCCL works through a group one after the other and
needs a group for each channel, served in turn. NCCL was not run here.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import count, cycle
from threading import Thread
from typing import Any

from osfmodel.runtime.job import GRACE, explained

NUMBERS = count()
"""Numbers of the groups: ranks make them in the same order, so each has the same name everywhere."""


class Channels:
    """Starts collectives of the default process group's ranks; each returns torch's ``Work``.

    channels: collectives in flight at once
    device:   of the tensors
    limit:    seconds for meeting and for each collective
    """

    def __init__(self, channels: int, device: Any, limit: float) -> None:
        import torch.distributed as dist

        self.world, self.rank = dist.get_world_size(), dist.get_rank()
        kind = dist.group.WORLD._get_backend(device).name()
        if kind == "gloo":
            self._groups = [_gloo(channels, device, timedelta(seconds=limit))]
        else:
            self._groups = [dist.new_group(timeout=timedelta(seconds=limit)) for _ in range(channels)]
        self._turn = cycle(range(len(self._groups)))

    def all_reduce(self, tensor: Any) -> Any:
        """Sum over all ranks, in place."""
        return self._next().allreduce([_real(tensor)])

    def reduce_scatter(self, output: Any, whole: Any) -> Any:
        """Put this rank's part of the sum into ``output``; ``whole``, with a part for each rank, may be overwritten."""
        from torch.distributed.distributed_c10d import ReduceScatterOptions

        return self._next()._reduce_scatter_base(_real(output), _real(whole), ReduceScatterOptions())

    def all_gather(self, whole: Any, part: Any) -> Any:
        """Put the parts of all ranks into ``whole``."""
        from torch.distributed.distributed_c10d import AllgatherOptions

        return self._next()._allgather_base(_real(whole), _real(part), AllgatherOptions())

    def _next(self) -> Any:
        return self._groups[next(self._turn)]

    def drop(self) -> None:
        """Drop the groups after an error: gloo closes connections once started work has ended, NCCL at the limit.

        Groups made later must not meet while earlier ones close, so this waits; but for GRACE seconds at most, since a
        group waits for its threads, one of which may wait for the lost rank up to the limit. The end of Python waits
        for that too: a thread that it cuts off aborts the process.
        """
        groups, self._groups = self._groups, []
        closing = Thread(target=groups.clear)
        closing.start()
        closing.join(GRACE)

    def close(self) -> None:
        """Release the groups: their connections close when nothing is in flight any more."""
        import torch.distributed as dist

        for group in self._groups:
            if isinstance(group, dist.ProcessGroup):
                dist.destroy_process_group(group)
        self._groups = []


def _real(tensor: Any) -> Any:
    """The tensor, as real numbers if it is complex."""
    import torch

    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _gloo(channels: int, device: Any, limit: timedelta) -> Any:
    """A gloo group with this many worker threads; ``new_group`` only makes groups with two."""
    import torch.distributed as dist

    options = dist.ProcessGroupGloo._Options()
    options._devices = dist.group.WORLD._get_backend(device).options._devices
    options._threads = channels
    options._timeout = limit
    store = dist.PrefixStore(f"osf/channels/{next(NUMBERS)}", dist.distributed_c10d._get_default_store())
    return dist.ProcessGroupGloo(store, dist.get_rank(), dist.get_world_size(), options)


def finish(message: Any, doing: str) -> None:
    """Wait for ``message.work`` and release it; on a GPU only the stream waits. Raises JobError if it failed."""
    try:
        message.work.wait()
        message.work = None
    except RuntimeError as error:
        raise explained(error, doing) from None
