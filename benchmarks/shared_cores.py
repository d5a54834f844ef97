"""Sparse buckets where four hosts share two cores: steps of ranks that take turns on them, beside the predictions.

    python benchmarks/shared_cores.py

``osf bench`` measures the choosing of entries on all ranks at once, and predictions charge that throughout. But a
replay sleeps in the place of computation, and ranks whose choices take a little more or less soon choose at different
moments, each with a core of its own; and messages wait for a core at each of their rounds, which predictions leave out.
Here the steps of the kept runs are simulated with the ranks on the cores that they had, in slices of SLICE_MS. Choosing
takes what it took between two hosts with a core each (ALONE), a little more or less from rank to rank and drawn anew:
by how much was not measured. To take messages off the network takes what the benches of other runs counted
(``handling``). Nothing is fitted to the steps. With a core for each rank, the effects that were measured there, and
whatever the handling, the simulation gives the prediction.
"""

from __future__ import annotations

import heapq
import itertools
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from live_sparse import CORES, NAME, SLICE_MS, groups, sparse  # noqa: E402

from osfmodel import load_cluster  # noqa: E402
from osfmodel.cost.clusters import pricing_of  # noqa: E402
from osfmodel.engine.sparse import Sparsity  # noqa: E402
from osfmodel.entities.batches import variation_of  # noqa: E402
from osfmodel.entities.effects import Effects  # noqa: E402
from osfmodel.entities.files.measurements import load_measurements  # noqa: E402
from osfmodel.entities.measurement import Measurement  # noqa: E402
from osfmodel.entities.plan import Bucket, Plan  # noqa: E402
from osfmodel.entities.workload import Workload  # noqa: E402
from osfmodel.ledger.sources import emulated_ddp  # noqa: E402

ALONE = f"{NAME}-2x500mbit"
"""Hosts with a core each, from which the effects of a rank alone are."""
BENCHES = "benchmarks/live_random/*-4x*-cluster.json"
"""Networks of four such hosts, of which the processor time of large messages is known."""
VARIED = (0.01, 0.1, 0.3)
"""The parts by which choices differ: with none at all ranks would stay together for ever."""
STEPS, SEED = 20, 1


class Want(NamedTuple):
    """A wait of a rank: for time (``sleep``), time of a core (``work``), or the arrival of a message (``message``)."""

    kind: str
    value: float


class Job(NamedTuple):
    """A plan on so many ranks: its computation, and the seconds of the messages of its buckets."""

    workload: Workload
    plan: Plan
    sparsity: Sparsity
    durations: Sequence[float]

    @staticmethod
    def of(run: Measurement, effects: Effects | None = None) -> Job:
        """The job of a kept run; with these effects instead of those that its own cluster states."""
        stated = dict(run.conditions)
        workload = emulated_ddp._workload(run.workload, variation_of(stated))
        pricing = pricing_of(load_cluster(run.cluster), run.workers).under(stated)
        plan = emulated_ddp.carried_out(run, workload, pricing)
        sparsity = Sparsity(workload, effects or pricing.effects, run.workers)
        cost = pricing.cost("all_gather")
        return Job(workload, plan, sparsity, [cost(sparsity.gathered_bytes(bucket)) for bucket in plan.buckets])

    def finish(self, bucket: Bucket) -> Iterator[Want]:
        """The means of a bucket, its mirror, and its part of the update."""
        mirror = self.sparsity.effects.mirror * bucket.size if self.plan.mirror else 0.0
        yield Want("work", self.sparsity.densify(bucket) + mirror)
        yield Want("sleep", self.workload.update_time * bucket.size / self.workload.gradient_bytes)

    def step(self, send: Callable[[int], None], arrived: Callable[[int], bool]) -> Iterator[Want]:
        """A step of a rank."""
        owners = {block.layer: (place, block) for place, one in enumerate(self.plan.buckets) for block in one.blocks}
        left, done = [len(bucket.blocks) for bucket in self.plan.buckets], 0
        yield Want("sleep", self.workload.forward_time)
        for layer in reversed(self.workload.layers):
            yield Want("sleep", layer.backward_time)
            if layer.name not in owners:
                continue
            place, block = owners[layer.name]
            yield Want("work", self.sparsity.sparsify(block, self.plan.buckets[place].density or 1))
            left[place] -= 1
            if not left[place]:
                send(place)
            while self.plan.release and done < len(left) and arrived(done):
                yield from self.finish(self.plan.buckets[done])
                done += 1
        for place in range(done, len(left)):
            yield Want("message", place)
            yield from self.finish(self.plan.buckets[place])


class Machine:
    """Ranks on cores, in slices; a bucket is sent when all ranks have it and the one before has arrived.

    varied: the part by which work takes more or less; handling: seconds of a core for each byte that a rank sends
    """

    def __init__(self, job: Job, cores: int, varied: float, handling: float = 0.0) -> None:
        self.job, self.ranks, self.free, self.varied = job, job.sparsity.workers, cores, varied
        self.random, self.now, self.handling = random.Random(SEED), 0.0, handling
        self.channel = deque[tuple[int, int]]()
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.count, self.queue = itertools.count(), deque[tuple[Callable[[], None], float]]()
        self.sent: dict[tuple[int, int], int] = {}
        self.arrived: set[tuple[int, int]] = set()
        self.waiting: dict[tuple[int, int], list[int]] = {}
        self.number, self.ends = [0] * self.ranks, [0.0] * STEPS
        self.course = [self._course(rank) for rank in range(self.ranks)]

    def step_time(self) -> float:
        """Seconds of a step, the median, by the last rank."""
        for rank in range(self.ranks):
            self._next(rank)
        while self.events:
            self.now, _, act = heapq.heappop(self.events)
            act()
            while self.free and self.queue:
                self._run(*self.queue.popleft())
        return median(after - before for before, after in itertools.pairwise(self.ends))

    def _course(self, rank: int) -> Iterator[Want]:
        for step in range(STEPS):
            self.number[rank] = step
            yield from self.job.step(partial(self._send, step), partial(self._there, step))
            self.ends[step] = max(self.ends[step], self.now)

    def _there(self, step: int, place: int) -> bool:
        return (step, place) in self.arrived

    def _at(self, time: float, act: Callable[[], None]) -> None:
        heapq.heappush(self.events, (time, next(self.count), act))

    def _next(self, rank: int) -> None:
        want = next(self.course[rank], None)
        if want is None:
            return
        if want.kind == "sleep":
            self._at(self.now + want.value, partial(self._next, rank))
        elif want.kind == "work":
            longer = 1 + self.random.uniform(-self.varied, self.varied)
            self._at(self.now, partial(self.queue.append, (partial(self._next, rank), want.value * longer)))
        elif (key := (self.number[rank], int(want.value))) in self.arrived:
            self._at(self.now, partial(self._next, rank))
        else:
            self.waiting.setdefault(key, []).append(rank)

    def _run(self, then: Callable[[], None], left: float) -> None:
        used = min(left, SLICE_MS / 1e3)
        self.free -= 1

        def over() -> None:
            self.free += 1
            if left > used:
                self.queue.append((then, left - used))
            else:
                then()

        self._at(self.now + used, over)

    def _send(self, step: int, place: int) -> None:
        self.sent[step, place] = self.sent.get((step, place), 0) + 1
        if self.sent[step, place] == self.ranks:  # buckets are full in their order, on the last rank too
            self.channel.append((step, place))
            if len(self.channel) == 1:
                self._round(self.ranks - 1)

    def _round(self, left: int) -> None:
        """A round of the first message in line: to the next rank over the network, then off it, which takes a core."""
        if not left:
            self._arrive(self.channel.popleft())
            if self.channel:
                self._round(self.ranks - 1)
            return
        place = self.channel[0][1]
        own = self.handling * self.job.sparsity.sent_bytes(self.job.plan.buckets[place])
        behind = [self.ranks]

        def taken() -> None:
            behind[0] -= 1
            if not behind[0]:
                self._round(left - 1)

        def there() -> None:
            self.queue.extend([(taken, own)] * self.ranks)

        self._at(self.now + self.job.durations[place] / (self.ranks - 1) - own, there)

    def _arrive(self, key: tuple[int, int]) -> None:
        self.arrived.add(key)
        for rank in self.waiting.pop(key, ()):
            self._next(rank)


def effects_alone(run: Measurement) -> Effects:
    """The effects on a rank with a core of its own, under the conditions of a run."""
    cluster = load_cluster(ALONE)
    return pricing_of(cluster, cluster.nodes or CORES).under(dict(run.conditions)).effects


def handling() -> float:
    """Seconds of a core for each byte that a rank sends and receives: the median of BENCHES, by their largest sizes."""
    found = []
    for path in sorted(ROOT.glob(BENCHES)):
        (table,) = (table for table in load_cluster(path).tables if table.collective == "all_reduce")
        sent = 2 * (table.workers - 1) * table.sizes[-1]  # by all ranks together, in a ring
        found.append((table.cpu_share or 0.0) * CORES * table.times[-1] / sent)
    return median(found)


def lines() -> Iterator[str]:
    """The cells of hosts that share cores: errors as predicted, and as simulated."""
    runs, each = {(run.workload, run.cluster, run.plan): run for run in load_measurements(NAME)}, handling()
    varied = " | ".join(f"and messages, ± {part:.0%}" for part in VARIED)
    yield f"{each * 1e9:.2f} ns of a core for each byte that a rank sends"
    yield f"| four hosts on {CORES} cores | predicted | in turns, ± {VARIED[1]:.0%} | {varied} |"
    yield "|---|--:|--:|" + "--:|" * len(VARIED)
    counted: list[list[float]] = []
    for group in groups():
        for turns in group.turns if group.workers > CORES else ():
            if not sparse(turns) or turns.error is None:
                continue
            run = runs[group.workload, group.cluster, turns.plan]
            job = Job.of(run, effects_alone(run))
            machines = [Machine(job, CORES, VARIED[1]), *(Machine(job, CORES, part, each) for part in VARIED)]
            errors = [turns.error, *(machine.step_time() / turns.measured - 1 for machine in machines)]
            counted += [errors] if turns.steady else []
            name = f"{group.workload} {turns.plan.partition(':sparse:')[2]}{'' if turns.steady else ', not counted'}"
            yield f"| {name} | {' | '.join(f'{error:+.1%}' for error in errors)} |"
    worst = [max(map(abs, column)) for column in zip(*counted, strict=True)]
    yield f"| worst that counts | {' | '.join(f'{error:.1%}' for error in worst)} |"


if __name__ == "__main__":
    print("\n".join(lines()))
