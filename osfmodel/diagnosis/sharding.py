"""The collectives of sharded parameters in a step, by the part that they play in its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise

from osfmodel.diagnosis.waits import GRAIN, Sent, Wait
from osfmodel.entities.trace import ROOTS, Key, Sharded, Step


class Roles:
    """The sharded collectives of a step, by key: which gather again, come first or last, or are waited for.

    ``on_host``: whether the thread that computes also launches them, and so may wait for each at once.
    """

    def __init__(self, step: Step, sent: Sequence[Sent], waits: Sequence[Wait], on_host: bool) -> None:
        self.step, self.waits, self.on_host = step, waits, on_host
        self.shards: list[tuple[Sent, Sharded]] = [(one, one.collective.shard) for one in sent if one.collective.shard]
        self.keys = {id(one.collective): one.key for one in sent}

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(self.shards)

    @cached_property
    def again(self) -> frozenset[Key]:
        """All-gathers of backward."""
        return frozenset(
            one.key for one, shard in self.shards if one.collective.kind == "all_gather" and shard.backward
        )

    @cached_property
    def reduced(self) -> frozenset[Key]:
        """Reduce-scatters, and all-reduces of shards."""
        return frozenset(one.key for one, _ in self.shards if one.collective.kind != "all_gather")

    @cached_property
    def first(self) -> frozenset[Key]:
        """All-gathers of forward up to that of the first block."""
        found = []
        for one, shard in self.shards:
            if shard.backward or one.collective.kind != "all_gather":
                break
            found.append(one.key)
            if shard.module not in ROOTS:
                break
        return frozenset(found[:2])

    @cached_property
    def final(self) -> frozenset[Key]:
        """Reduce-scatters and all-reduces of the last block of backward, and of what comes when backward is over."""
        reduced = [(one, shard) for one, shard in self.shards if one.key in self.reduced]
        if not reduced:
            return frozenset()
        blocks = [shard.module for _, shard in reduced if not shard.last]
        last_block = blocks[-1] if blocks else reduced[-1][1].module
        found = {one.key for one, shard in reduced if shard.last}
        for kind in ("reduce_scatter", "all_reduce"):
            mine = [one.key for one, shard in reduced if (shard.module, one.collective.kind) == (last_block, kind)]
            found.update(mine[-1:])  # of its last micro-batch
        return frozenset(found)

    @cached_property
    def awaited(self) -> frozenset[Key]:
        """Reduce-scatters that backward waits for before it goes on. FSDP1 has no limit, and waits for none."""
        end = max((use.start for use in self.step.uses if use.backward), default=self.step.start)
        held = [
            wait.collective
            for wait in self.waits
            if wait.collective.shard
            and not wait.collective.shard.flat
            and wait.collective.kind == "reduce_scatter"
            and wait.start < end
        ]
        return frozenset(self.keys[id(one)] for one in held)

    @cached_property
    def one_communicator(self) -> bool:
        """Whether all-gathers and reduce-scatters go through one process group."""
        groups = [
            {one.collective.group for one, _ in self.shards if one.collective.kind == kind}
            for kind in ("all_gather", "reduce_scatter")
        ]
        return bool(groups[0] & groups[1])

    @cached_property
    def needed(self) -> Mapping[Key, float]:
        """Time at which each collective that the host waited for at once is needed, if it went in the background."""
        found = {}
        scatters = [one for one, _ in self.shards if one.collective.kind == "reduce_scatter"]
        following = {one.key: later.collective.start for one, later in pairwise(scatters)}
        for one, shard in self.shards:
            if not self._blocks(one):
                continue
            if one.collective.kind == "all_gather" and shard.by != shard.module:
                uses = [
                    use.start for use in self.step.uses if (use.module, use.backward) == (shard.module, shard.backward)
                ]
                found[one.key] = min(
                    (time for time in uses if time >= one.collective.start), default=one.collective.start
                )
            elif one.collective.kind == "reduce_scatter":
                found[one.key] = following.get(one.key, one.collective.end)
            elif one.collective.kind == "all_reduce":
                found[one.key] = self.step.backward[1] if self.step.backward else one.collective.end
        return found

    def _blocks(self, one: Sent) -> bool:
        """Whether the step waited for a collective from the moment in which it was issued."""
        if not self.on_host:
            return False
        issued = one.collective.start if one.collective.issued is None else one.collective.issued
        return any(wait.collective is one.collective and wait.start <= issued + GRAIN for wait in self.waits)
