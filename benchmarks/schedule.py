"""How the simulator and the bounds grow with the number of blocks, and with the number of workers.

    python benchmarks/schedule.py [--repeats 3] [--most 100000]

Seconds are processor time, the least of the repeats; the ratio is to the row before, which has half as many: 2 is
linear. Blocks are pieces of equal size of the 467 tensors of a profile as long as ResNet-152's, each sent by itself, in
ready order or by priority, on one channel or four, with the next forward overlapped.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import pairwise

from osfmodel import Layer, Workload, load_cluster
from osfmodel.cost import AffineCost, TableCost
from osfmodel.cost.clusters import pricing_of
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import simulate
from osfmodel.entities.plan import Block, Bucket, Objective, Plan, contiguous_plan
from osfmodel.solve.bounds import objective_bound

TENSORS = 467
BYTES = 240e6
LINES = Pricing.of(AffineCost(((1e-5, 1e-9), (5e-5, 8e-10))))
KNOTS = range(1, 4000)
TABLE = Pricing.of(TableCost(tuple(4096 * k for k in KNOTS), tuple(1e-5 + 4e-6 * k for k in KNOTS)))


def workload_of(tensors: int) -> Workload:
    layers = [Layer(f"t{i}", 0.1 / tensors, 0.2 / tensors, int(BYTES / tensors)) for i in range(tensors)]
    return Workload("made", tuple(layers))


def cut(workload: Workload, count: int, objective: Objective, credit: int | None) -> Plan:
    """``count`` blocks, as near as equal pieces of all tensors allow."""
    parts = max(round(count / TENSORS), 1)
    buckets = []
    for layer in reversed(workload.layers):
        marks = [layer.gradient_bytes * part // parts for part in range(parts + 1)]
        buckets += [Bucket((Block(layer.name, low, high - low),)) for low, high in pairwise(marks)]
    order = buckets if credit is None else list(reversed(buckets))
    return Plan(workload.name, tuple(order), credit=credit).under(objective)


def seconds(part: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()
        part()
        times.append(time.process_time() - start)
    return min(times)


def doublings(least: int, most: int) -> list[int]:
    counts = [most]
    while counts[-1] > least:
        counts.append(counts[-1] // 2)
    return counts[::-1]


def grow(title: str, counts: list[int], make: Callable[[int], Callable[[], object]], repeats: int) -> None:
    print(title)
    before = 0.0
    for count in counts:
        now = seconds(make(count), repeats)
        ratio = f"  x {now / before:.2f}" if before else ""
        print(f"  {count:>7}  {now:8.3f} s  {1e6 * now / count:6.1f} us each{ratio}")
        before = now


def simulators(counts: list[int], repeats: int) -> None:
    workload = workload_of(TENSORS)
    for channels in (1, 4):
        for credit in (None, 4_000_000):

            def make(count: int, channels: int = channels, credit: int | None = credit) -> Callable[[], object]:
                plan = cut(workload, count, Objective(channels, forward_overlap=True), credit)
                return lambda: simulate(workload, plan, LINES)

            order = "ready order" if credit is None else "priority"
            grow(f"simulator, {order}, channels {channels}: blocks", counts, make, repeats)


def bounds(counts: list[int], repeats: int) -> None:
    for name, pricing in (("two lines", LINES), (f"a table of {len(KNOTS)} sizes", TABLE)):
        for objective in (Objective(1, True), Objective(2, True, "split")):

            def make(count: int, pricing: Pricing = pricing, objective: Objective = objective) -> Callable[[], object]:
                workload = workload_of(count)
                return lambda: objective_bound(workload, pricing, objective)

            grow(f"bound, {name}, {objective}: tensors", counts, make, repeats)


def workers(repeats: int) -> None:
    workload, cluster = workload_of(TENSORS), load_cluster("k80-10gbe-ring")
    ends = list(range(1, TENSORS + 1))
    plan = contiguous_plan(workload, ends).under(Objective(2, forward_overlap=True))
    print("simulator, one bucket per tensor, pricing included: workers")
    for count in (8, 1000):
        now = seconds(lambda count=count: simulate(workload, plan, pricing_of(cluster, count)), 5 * repeats)  # type: ignore[misc]
        print(f"  {count:>7}  {1e3 * now:8.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--most", type=int, default=100_000)
    arguments = parser.parse_args()
    counts = doublings(6250, arguments.most)
    simulators(counts, arguments.repeats)
    bounds(counts, arguments.repeats)
    workers(arguments.repeats)


if __name__ == "__main__":
    main()
