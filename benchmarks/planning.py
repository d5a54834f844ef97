"""How close plans come to the bound, and how long planning takes:

    python benchmarks/planning.py [--workload googlenet-k80] [--cluster k80-10gbe-ring] [--channels 1] [--split]
                                  [--barrier] [--workers 8 16 32 64 128 256 512]

Each row: iteration time of the plan ``planned`` over the bound; the same over the bound without the start-ups of more
than one message (LB_q); the family "in order, then by priority" and the other schedulers over the bound; and seconds
of planning in this process, which hang on the machine. Last, a ResNet-152 of 467 tensors.
"""

from __future__ import annotations

import argparse
import time

import osfmodel as osf
from osfmodel.cost.clusters import pricing_of
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.plan import Objective
from osfmodel.solve import SOLVERS, Question
from osfmodel.solve.exact import optimal
from osfmodel.solve.scheduling import Jobs
from osfmodel.solve.search import priority


def without_startups(workload: osf.Workload, pricing: Pricing, objective: Objective) -> float:
    """LB_q = max over i of r_i + T(S_i) + q_i, or the compute time: one channel, whole all-reduces."""
    jobs, suffix, bound = Jobs.of(workload, objective), 0, workload.compute_time
    for size, ready, tail in zip(reversed(jobs.sizes), reversed(jobs.ready), reversed(jobs.tails), strict=True):
        suffix += size
        bound = max(bound, ready + pricing.cost()(suffix) + tail)
    return bound


def row(workload: osf.Workload, pricing: Pricing, objective: Objective, planner: str) -> dict[str, float]:
    """One line of the table, by column."""
    question = Question(workload, pricing, objective)
    start = time.perf_counter()
    solution = SOLVERS[planner].solve(question)
    seconds = time.perf_counter() - start
    bound, value = solution.lower_bound, solution.require()[1].iteration_time
    found = {"planned ms": value * 1e3, "bound ms": bound * 1e3, "planned/bound": value / bound}
    if objective.channels == 1 and not objective.split:
        found["planned/LB_q"] = value / without_startups(workload, pricing, objective)
    known = {"priority": priority.plan(workload, Jobs.of(workload, objective), pricing)}
    known["in order"] = optimal.solve(Question(workload, pricing)).require_plan()
    for name, plan in known.items():
        found[name] = predict_timeline(workload, plan.under(objective), pricing).iteration_time / bound
    for name, rule in SOLVERS.items():
        if name != planner and rule.serves(objective):
            other = rule.solve(question).timeline
            found[name] = other.iteration_time / bound if other is not None else float("nan")
    return found | {"seconds": seconds}


def show(name: str, cells: dict[str, float]) -> None:
    print(f"{name:>10} " + " ".join(f"{value:>{max(len(key), 8)}.4f}" for key, value in cells.items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="googlenet-k80")
    parser.add_argument("--cluster", default="k80-10gbe-ring")
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 16, 32, 64, 128, 256, 512])
    parser.add_argument("--channels", type=int, default=1)
    parser.add_argument("--split", action="store_true")
    parser.add_argument("--barrier", action="store_true")
    arguments = parser.parse_args()
    objective = Objective(arguments.channels, not arguments.barrier, arguments.split)
    workload, cluster = osf.load_workload(arguments.workload), osf.load_cluster(arguments.cluster)
    for number, workers in enumerate(arguments.workers):
        cells = row(workload, pricing_of(cluster, workers), objective, "planned")
        if not number:
            print(f"{'workers':>10} " + " ".join(f"{key:>8}" for key in cells))
        show(str(workers), cells)
    large, network = osf.load_workload("resnet152-reconstructed"), pricing_of(osf.load_cluster("v100-10gbe"), 64)
    start = time.perf_counter()
    solution = SOLVERS["planned"].solve(Question(large, network, objective))
    seconds = time.perf_counter() - start
    print(
        f"{large.name}, {len(large.gradients)} tensors, v100-10gbe, 64 workers: gap {solution.gap:.1e}, {seconds:.3f} s"
    )


if __name__ == "__main__":
    main()
