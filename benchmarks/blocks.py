"""How fast block sizes are chosen. Run it by itself on a quiet machine:

    python benchmarks/blocks.py [--repeats 7]

The linear programme at 200 boundaries on a profile of 467 tensors with forward overlap: the first solve of a fresh
process (import of highspy not included), and a later one; then the whole scheduler, and the mixed-integer programme on
small ones.
Each figure is the median of repeats, with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import block_choice
import numpy as np

import osfmodel as osf
from osfmodel import Layer, Workload
from osfmodel.cost import AffineCost
from osfmodel.cost.clusters import pricing_of
from osfmodel.cost.pricing import Pricing
from osfmodel.entities.plan import Objective
from osfmodel.solve import Limits
from osfmodel.solve import blocks as search
from osfmodel.solve.blocks import resize, tape

BOUNDARIES = 200
OVERLAP = Objective(forward_overlap=True)
AIM_FIRST_MS, AIM_AGAIN_MS = 50.0, 10.0


def long_workload(count: int = 467, seconds: float = 0.15, total_bytes: float = 240e6) -> Workload:
    """As deep and as large as ResNet-152: ResNet-50's profile repeated, forward half of backward."""
    base = osf.load_workload("resnet50-v100").gradients
    steps = np.tile(np.diff([0.0, *base.ready_times])[1:], 3)[:count]
    sizes = np.tile(np.array(base.sizes[1:], dtype=float), 3)[:count]
    steps, sizes = steps * (seconds / steps.sum()), np.maximum(4, sizes * (total_bytes / sizes.sum()) // 4 * 4)
    layers = [
        Layer(f"t{i}", step / 2, step, int(size)) for i, (step, size) in enumerate(zip(steps, sizes, strict=True))
    ]
    return Workload("long", tuple(reversed(layers)))


def instance(workload: Workload, pricing: Pricing) -> tuple[resize.SizingProblem, tape.Tape, list[tape.Cut]]:
    """Equal collectives, half of the layers in ready order and the rest by priority, each cut inside its layer."""
    count = len(workload.gradients)
    laid = tape.laid_out(workload, [*range(count // 2), *reversed(range(count // 2, count))])
    positions = [laid.total * k / (BOUNDARIES + 1) for k in range(1, BOUNDARIES + 1)]
    inside = [max(s for s in range(len(laid.segments)) if laid.starts[s] <= position) for position in positions]
    cuts = [tape.Cut(segment, segment, position) for segment, position in zip(inside, positions, strict=True)]
    return resize.problem_of(workload, pricing, OVERLAP), laid, cuts


def first() -> None:
    """In a fresh process: print the milliseconds of the first solve, and of importing highspy before it."""
    start = time.perf_counter()
    import highspy  # noqa: F401, PLC0415

    imported = time.perf_counter()
    workload = long_workload()
    problem, laid, cuts = instance(workload, pricing_of(osf.load_cluster("v100-10gbe"), 16))
    before = time.perf_counter()
    found = resize.resized(problem, laid, cuts)
    after = time.perf_counter()
    assert found.status is None
    print((after - before) * 1e3, (imported - start) * 1e3)


def timed(part: Callable[[], object], repeats: int) -> list[float]:
    """Milliseconds."""
    part()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        part()
        found.append((time.perf_counter() - start) * 1e3)
    return found


def show(name: str, values: list[float], aim: float | None = None) -> None:
    median = statistics.median(values)
    verdict = "" if aim is None else f"  aim {aim:g}: {'met' if median <= aim else 'MISSED'}"
    print(f"{name:<72} {median:8.1f} ms ({min(values):.1f} to {max(values):.1f}){verdict}")


def linear_programme(repeats: int) -> None:
    """The linear programme at 200 boundaries."""
    command = [sys.executable, __file__, "--first"]
    runs = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(repeats)]
    show("first solve of a process", [float(run.split()[0]) for run in runs], AIM_FIRST_MS)
    show("import of highspy before it", [float(run.split()[1]) for run in runs])
    workload, cluster = long_workload(), osf.load_cluster("v100-10gbe")
    problems = [instance(workload, pricing_of(cluster, workers)) for workers in (16, 16)]
    slow = pricing_of(cluster, 16)
    problems[1] = instance(workload, Pricing({kind: cost.slower(1.3) for kind, cost in slow.costs.items()}))
    turn = iter(range(10**9))
    problem, laid, cuts = problems[0]
    scale = resize.time_of(problem, laid, cuts)
    others = [resize.figures_of(*problem) for problem in problems]
    again = timed(lambda: resize.solve_program(others[next(turn) % 2], scale), repeats)
    show("solve again, other figures", again, AIM_AGAIN_MS)
    whole = timed(lambda: resize.resized(*problems[next(turn) % 2]), repeats)
    show("  with the figures before it and the time of the sequence after it", whole)


def schedulers(repeats: int) -> None:
    """All of ``blocks``: seeds, sizes, search, timeline."""
    workload = long_workload()
    for name, workers in (("v100-10gbe", 16), ("v100-56gib", 16), ("azure-a100-hdr", 64)):
        pricing = pricing_of(osf.load_cluster(name), workers)
        question = osf.Question(workload, pricing, OVERLAP)
        values = timed(lambda question=question: search.solve(question), max(3, repeats // 2))
        show(f"scheduler blocks, 467 tensors, forward overlap, {name}, {workers} workers", values)


def choices() -> None:
    """The mixed-integer programmes of all orders and up to four collectives, and the search beside them."""
    rng = np.random.default_rng(0)
    for count in (4, 6, 8):
        seconds, excess = [], []
        for _ in range(4):
            layers = [
                Layer(f"l{i}", float(rng.uniform(0.1, 1)), float(rng.uniform(0.1, 1)), 400 * int(rng.integers(1, 100)))
                for i in range(count)
            ]
            workload = Workload("small", tuple(layers))
            slope = workload.backward_time / workload.gradient_bytes
            pricing = Pricing.of(AffineCost(((0.2, slope),)))
            start = time.perf_counter()
            found = block_choice.certified(workload, pricing, OVERLAP, Limits(max_buckets=6))
            seconds.append((time.perf_counter() - start) * 1e3)
            plan, timeline = search.solve(osf.Question(workload, pricing, OVERLAP)).require()
            if len(plan.buckets) <= 6:
                excess.append(timeline.iteration_time / found.optimum - 1)
            assert found.proven
        show(f"choice of layers, {count} layers, up to 6 collectives, proven optimal", seconds)
        most = f"mean {np.mean(excess):.3%}, most {max(excess):.3%}"
        print(f"    the search of blocks above that optimum: {most} ({len(excess)} of 4)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--first", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.first:
        first()
        return
    linear_programme(arguments.repeats)
    schedulers(arguments.repeats)
    choices()


if __name__ == "__main__":
    main()
