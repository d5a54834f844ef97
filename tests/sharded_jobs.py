"""Jobs of FSDP2 made up as traces: blocks between an embedding and a head, which are the root's."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction

from osfmodel.entities.timeline import union
from osfmodel.entities.trace import Collective, RankTrace, Sharded, ShardedUse, Step, Trace
from tests.engine.sharded_events import Events
from tests.engine.sharded_events import Sharded as Group

MILLI = 1e-3
ROOT = "root"


@dataclass(frozen=True)
class ShardedJob:
    """A model in groups, the root's first, and how it is run. Milliseconds, and elements of a group.

    forward, backward: of each group; of the root, of its embedding, and 1 each of its head
    gathers:  of each all-gather, in forward and in backward
    scatters: of each reduce-scatter; ``between``: of each all-reduce of shards
    reshard:  whether backward gathers again; ``inputs``: reduce-scatters whose inputs are in memory at once
    separate: whether reduce-scatters have a communicator of their own
    blocking: whether the host computes, and waits for each collective as soon as it has issued it
    lead:     as in :class:`tests.jobs.Job`, like the other fields
    """

    forward: tuple[float, ...] = (1, 10, 10, 10, 10)
    backward: tuple[float, ...] = (1, 20, 20, 20, 20)
    gathers: tuple[float, ...] = (0.1,) * 5
    scatters: tuple[float, ...] = (0.1,) * 5
    between: tuple[float, ...] = (0,) * 5
    elements: tuple[int, ...] = (1000, 2000, 4000, 3000, 8000)
    reshard: bool = True
    inputs: int = 1
    separate: bool = False
    blocking: bool = False
    update: float = 4
    steps: int = 3
    backend: str = "nccl"
    lead: float = 1.0
    latency: float = 0.1 * MILLI
    per_byte: float = 1e-9
    traced: tuple[int, ...] = field(default=())


def _groups(job: ShardedJob) -> list[Group]:
    rows = zip(job.forward, job.backward, job.gathers, job.scatters, job.between, strict=True)
    return [
        Group(
            *map(Fraction, (forward, backward, gather, gather, scatter, between)),
            *(Fraction(0), Fraction(0), Fraction(0)), job.reshard, place == 0, 0, 1, True,
        )
        for place, (forward, backward, gather, scatter, between) in enumerate(rows)
    ]  # fmt: skip


def times_of(job: ShardedJob) -> dict[str, tuple[float, float, float]]:
    """(when it could begin, start, end) of each operation, in milliseconds, in the order of issue."""
    root, *blocks = _groups(job)
    seconds: dict[str, Fraction] = {}

    could: dict[str, Fraction] = {}

    class Noted(Events):
        def add(self, name, stream, took, *needs):
            seconds[name] = took
            could[name] = max([Fraction(0), *(self.ends[need] for need in needs if need is not None)])
            super().add(name, stream, took, *needs)

    ends = Noted(blocks, (root, Fraction(1), Fraction(1)), job.inputs, job.separate).ends
    if not job.blocking:
        return {name: (float(could[name]), float(end - seconds[name]), float(end)) for name, end in ends.items()}
    found, now = {}, 0.0
    for name, took in seconds.items():
        found[name] = (now, now, now + float(took))
        now += float(took)
    return found


def trace_of(job: ShardedJob) -> Trace:
    """The trace of two equal ranks, or of those in ``traced``."""
    times = times_of(job)
    length = (max(end for _, _, end in times.values()) + job.update) * MILLI
    known = job.traced or (0, 1)
    steps = tuple(_step(job, times, number, number * length, length, len(known) > 1) for number in range(job.steps))
    host = job.blocking or job.backend == "gloo"
    return Trace("made-up", tuple(RankTrace(rank, steps, 2, "cpu", job.backend, host_computes=host) for rank in known))


KINDS = {"gather": "all_gather", "scatter": "reduce_scatter", "between": "all_reduce"}


def _step(job, times, number, start, length, arrived) -> Step:
    def at(time):
        return start + time * MILLI

    collectives, compute = [], []
    for name, (could, begin, end) in times.items():
        kind, *way, group = name.split()
        if kind in KINDS:
            place = 0 if group == ROOT else int(group) + 1
            backward = kind != "gather" or way == ["backward"]
            by = _module(group if kind != "gather" or not backward else _after(group, len(job.forward) - 1))
            shard = Sharded(_module(group), backward, by, group == ROOT and kind != "gather")
            size = job.elements[place] * (2 if kind == "scatter" else 1)
            issued = start + could * MILLI / (1 if job.blocking else job.lead)
            group_name = (
                "replicas" if kind == "between" else "scatters" if kind == "scatter" and job.separate else "shards"
            )
            collectives.append(
                Collective(KINDS[kind], at(begin), at(end), issued, size, "float32", "dims", group_name, None, 2,
                           at(begin) if arrived else None, shard)
            )  # fmt: skip
        elif end > begin and kind in ("forward", "backward"):
            compute.append((at(begin), at(end)))
    middle = max(times["forward head"][2], 0)
    done = max(end for name, (_, _, end) in times.items() if name.startswith("backward "))
    updating = start + length - job.update * MILLI
    compute.append((updating, start + length))
    collectives.sort(key=lambda one: one.start)
    return Step(
        number, start, start + length, union(compute), tuple(collectives), forward=(start, at(middle)),
        backward=(at(middle), at(done)), update=(updating, start + length), uses=tuple(_uses(job, times, at)),
    )  # fmt: skip


def _module(group: str) -> str:
    return "" if group == ROOT else f"layers.{group}"


def _after(group: str, blocks: int) -> str:
    """The group in whose backward another is gathered ahead."""
    return ROOT if int(group) + 1 == blocks else str(int(group) + 1)


def _uses(job, times, at):
    found = [ShardedUse("", False, at(0), at(times["forward head"][2]))]
    found.append(ShardedUse("", True, at(times["backward head"][1]), at(times["backward root"][2])))
    for place in range(len(job.forward) - 1):
        for way in ("forward", "backward"):
            _, begin, end = times[f"{way} {place}"]
            found.append(ShardedUse(f"layers.{place}", way == "backward", at(begin), at(end)))
    return sorted(found, key=lambda use: use.start)


UNEVEN = ShardedJob(forward=(1, 10, 4, 10, 10), backward=(1, 30, 4, 4, 40), scatters=(0.1, 0.1, 0.1, 0.1, 24), inputs=9)
LIMITED = ShardedJob(backward=(1, 40, 30, 4, 20), scatters=(0.1, 0.1, 0.1, 0.1, 24), reshard=False, separate=True)
GATHERED = ShardedJob(forward=(1, 30, 30, 30, 30), backward=(1, 10, 10, 10, 10), gathers=(0.1, 0.1, 25, 25, 25))
OVERLAPPED = ShardedJob(scatters=(0.1, 0.1, 15, 15, 15), reshard=False)
PLANTED_SHARDED = {
    "blocking": replace(OVERLAPPED, blocking=True),
    "one-communicator": UNEVEN,
    "reduce-scatter-input": LIMITED,
    "gathered-twice": GATHERED,
    "first-gather": ShardedJob(gathers=(20, 10, 0.1, 0.1, 0.1), reshard=False),
    "last-reduce-scatter": ShardedJob(scatters=(15, 10, 0.1, 0.1, 0.1), reshard=False),
}
"""By the cause that limits it, a job of FSDP2."""
REMOVED_SHARDED = {
    "blocking": OVERLAPPED,
    "one-communicator": replace(UNEVEN, separate=True),
    "reduce-scatter-input": replace(LIMITED, inputs=9),
    "gathered-twice": replace(GATHERED, reshard=False),
    "first-gather": ShardedJob(gathers=(0, 0, 0.1, 0.1, 0.1), reshard=False),
    "last-reduce-scatter": ShardedJob(scatters=(0, 0, 0.1, 0.1, 0.1), reshard=False),
}
"""The same jobs without the cause."""
