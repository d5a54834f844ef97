"""Times of all ranks, exchanged through the job's key-value store: no collective, no process group of our own."""

from __future__ import annotations

import json
from typing import Any

from osfmodel.runtime.watching.late import RankTimes

KEPT = 64
"""Windows that stay in the store, for ranks that read late."""


class RankExchange:
    """Times of this rank for the others, and theirs: a key of the store for each rank and window of steps.

    A rank that posts nothing keeps no other from training. ``number`` tells the watches of a process apart.
    """

    def __init__(self, store: Any, rank: int, world: int, number: int) -> None:
        self.home = store  # the store of rank 0 serves the others as long as somebody holds it
        self.store = store.clone() if hasattr(store, "clone") else store  # its own connection
        self.rank, self.world, self.number = rank, world, number

    def post(self, window: int, mine: RankTimes) -> None:
        """Store the times of this rank, and delete its old ones. Raises RuntimeError if the store is gone."""
        self.store.set(self._key(window, self.rank), json.dumps(mine))
        if window >= KEPT:
            self.store.delete_key(self._key(window - KEPT, self.rank))

    def gather(self, window: int) -> list[RankTimes] | None:
        """The times of all ranks, in order; None if some are not there yet. Raises RuntimeError as :meth:`post`."""
        keys = [self._key(window, rank) for rank in range(self.world)]
        if not self.store.check(keys):
            return None
        found = self.store.multi_get(keys) if self.store.has_extended_api() else map(self.store.get, keys)
        return [RankTimes(*json.loads(text)) for text in found]

    def missing(self, window: int) -> list[int]:
        """Ranks whose times are not in the store."""
        return [rank for rank in range(self.world) if not self.store.check([self._key(window, rank)])]

    def _key(self, window: int, rank: int) -> str:
        return f"osfmodel.watch/{self.number}/{window}/{rank}"


def exchange_of(number: int) -> RankExchange | None:
    """The exchange of this process with the others of its job; None if it trains alone."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() < 2:
        return None
    store = dist.distributed_c10d._get_default_store()
    return RankExchange(store, dist.get_rank(), dist.get_world_size(), number)
