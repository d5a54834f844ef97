"""The papers' claims beside their replay and our planner: ASC-WFBP's and US-Byte's speed-ups, as one table.

    python benchmarks/claims.py

Ratios of iteration times only. Tensors and the shares of time are those of the ``*-reconstructed`` workloads; compute
time is the papers'. Each row is one model at one price of an all-reduce: the paper's method over no fusion (WFBP, one
message per tensor and a barrier) and over its rival, as published and as replayed; then, over the same, our planner
under the rules of the paper's method; and how far both are from the bound that holds under these rules. "-" where
nothing was published per model, or where there is no planner. docs/reference/published.md says what follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import osfmodel as osf
from osfmodel.cost import AffineCost
from osfmodel.cost.clusters import pricing_of
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.entities.plan import PLAIN, Objective
from osfmodel.entities.workload import Workload
from osfmodel.ledger.sources import papers
from osfmodel.solve import SOLVERS, Question
from osfmodel.solve.published import asc_wfbp, byte_scheduler
from osfmodel.targets.named_plans import make_plan

PLANNER = "planned"
FORWARD_TIMES = {"vgg16": 0.178, "resnet50": 0.0825, "resnet152": 0.324, "densenet201": 0.491}
"""Seconds of forward per model in US-Byte's planner (Get_t_f, summed), at batch 128, 128, 32 and 64. Backward is not
published: twice as long here, as in the reconstructions. Its other models have no reconstruction."""
US_BYTE_START_UP, US_BYTE_PER_UNIT = 1.3186e-3, 2.406e-10
"""a and b of 8 workers in US-Byte's planner (Get_a_and_b). It multiplies b by elements, which means 133 Gb/s for one
all-reduce, hence 233 Gb/s on the wire; per byte it would be 58 Gb/s. Both are shown."""
PLOTTED_10GBE = AffineCost(((1.3687e-3, 1.6570e-9),))
"""One all-reduce on 8 nodes over 10GbE: the plot script of ASC-WFBP."""
MOST = {"8 nodes": (1.56, 1.26), "128 GPUs": (1.69, 1.69)}
"""US-Byte's abstract: at most, over WFBP and over ByteScheduler; at 128 GPUs over "the state of the art"."""


class Case(NamedTuple):
    """One model at one price: the paper's method, its rival, and what it publishes over WFBP and over that rival."""

    setting: str
    model: str
    workload: Workload
    pricing: Pricing
    method: str
    published: tuple[float | None, float | None]


class Row(NamedTuple):
    """Ratios over WFBP and over the rival, of the method as published and as replayed, and of our planner; and gaps."""

    case: Case
    replayed: tuple[float, float]
    gap: float
    planned: tuple[float, float] | None
    planned_gap: float | None


def asc_cases() -> Iterator[Case]:
    """32 GPUs over 10GbE, by the constants of two of the authors' scripts."""
    runs: dict[str, dict[str, float]] = {}
    compute: dict[str, float] = {}
    for run in load_measurements("papers"):
        if run.workers == 32:
            runs.setdefault(run.workload, {})[run.plan] = run.iteration_time
            compute[run.workload] = float(run.condition("compute_time_s"))
    for setting, cost in (("32 GPUs, dear_pytorch", papers.PUBLISHED_32), ("32 GPUs, plot script", PLOTTED_10GBE)):
        pricing = Pricing({"all_reduce": cost}, 32, asc_wfbp.PUBLISHED_GAIN)
        for name, times in runs.items():
            workload = papers.as_run(osf.load_workload(name), compute[name], "fp32")
            published = times["wfbp"] / times["asc-wfbp"], times["mg-wfbp"] / times["asc-wfbp"]
            yield Case(setting, name.removesuffix("-reconstructed"), workload, pricing, "asc-wfbp", published)


def us_byte_cases() -> Iterator[Case]:
    """8 nodes by three prices, and 128 GPUs by the ring rule from the link of v100-10gbe."""
    settings = {
        "8 nodes, b per element": AffineCost(((US_BYTE_START_UP, US_BYTE_PER_UNIT / 4),)),
        "8 nodes, b per byte": AffineCost(((US_BYTE_START_UP, US_BYTE_PER_UNIT),)),
        "8 nodes, 10GbE": PLOTTED_10GBE,
    }
    prices = {name: Pricing({"all_reduce": cost}, 8) for name, cost in settings.items()}
    prices["128 GPUs, 10GbE ring"] = pricing_of(osf.load_cluster("v100-10gbe"), 128)
    for setting, pricing in prices.items():
        for model, forward in FORWARD_TIMES.items():
            workload = papers.as_run(osf.load_workload(f"{model}-reconstructed"), 3 * forward, "fp32")
            yield Case(setting, model, workload, pricing, "us-byte", (None, None))


def plain(case: Case, name: str) -> float:
    """Seconds per iteration of a plan of one channel with a barrier."""
    plan = make_plan(name, case.workload, case.pricing, PLAIN)
    return predict_timeline(case.workload, plan, case.pricing).iteration_time


def rival(case: Case) -> float:
    """MG-WFBP, or ByteScheduler with the best of its documented partitions and credits."""
    if case.method == "asc-wfbp":
        return plain(case, "mg-wfbp")
    plans = (byte_scheduler.plan(case.workload, *setting) for setting in byte_scheduler.DOCUMENTED)
    return min(predict_timeline(case.workload, plan, case.pricing).iteration_time for plan in plans)


def solved(case: Case, name: str, objective: Objective) -> tuple[float, float]:
    """(seconds per iteration, gap to the bound) of an entry of SOLVERS."""
    solution = SOLVERS[name].solve(Question(case.workload, case.pricing, objective))
    time = solution.require()[1].iteration_time
    return time, time / solution.lower_bound - 1


def row(case: Case) -> Row:
    """One line of the table."""
    objective = SOLVERS[case.method].objective
    others = plain(case, "wfbp"), rival(case)
    time, gap = solved(case, case.method, objective)
    replayed = others[0] / time, others[1] / time
    if PLANNER not in SOLVERS:
        return Row(case, replayed, gap, None, None)
    best, best_gap = solved(case, PLANNER, objective)
    return Row(case, replayed, gap, (others[0] / best, others[1] / best), best_gap)


def most(rows: list[Row]) -> Mapping[str, tuple[str, ...]]:
    """For each setting of US-Byte, the largest ratios as published, as replayed, and of the planner."""
    settings: dict[str, list[Row]] = {}
    for one in rows:
        if one.case.method == "us-byte":
            settings.setdefault(one.case.setting, []).append(one)
    found = {}
    for setting, group in settings.items():
        claims = MOST[setting.split(",")[0]]
        numbers = []
        for k in range(2):
            planned = [one.planned[k] for one in group if one.planned is not None]
            numbers += [f"{claims[k]:.2f}", f"{max(one.replayed[k] for one in group):.2f}"]
            numbers.append(f"{max(planned):.2f}" if planned else "-")
        found[setting] = (*numbers, "", "")
    return found


def cells(one: Row) -> tuple[str, ...]:
    """The numbers of a line."""
    numbers = []
    for k in range(2):
        claim = one.case.published[k]
        numbers += ["-" if claim is None else f"{claim:.2f}", f"{one.replayed[k]:.2f}"]
        numbers.append("-" if one.planned is None else f"{one.planned[k]:.2f}")
    return *numbers, *("-" if gap is None else f"{max(gap, 0):.1%}" for gap in (one.gap, one.planned_gap))


def main() -> None:
    rows = [row(case) for case in (*asc_cases(), *us_byte_cases())]
    heads = ("setting", "model", *("paper", "replay", "ours") * 2, "gap", "gap of ours")
    print("over WFBP, then over the rival (MG-WFBP; ByteScheduler):")
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for one in rows:
        print(f"| {' | '.join((one.case.setting, one.case.model, *cells(one)))} |")
    for setting, numbers in most(rows).items():
        print(f"| {' | '.join((setting, 'most of all', *numbers))} |")


if __name__ == "__main__":
    main()
