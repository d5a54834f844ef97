"""OSF's model as reconstructed: its error on the ledger, and adaptive fusion against constant buffers.

    python benchmarks/osf_model.py

It prints the tables of docs/reference/osf.md. First: for each source of the ledger the runs on which nothing was
fitted, predicted by the engine `osf` (the recursion alone) and by ours, from the same profiles, prices and buckets.
Nothing is fitted for this engine but what the recipe of a source takes from other runs in any case, and that is made
again without effects (AdaptDL's seconds per byte). Runs that the model cannot express (several channels, the next
forward overlapped, priorities) are not counted. Second: for every bundled workload, the scaling factor under each rule
of adaptive fusion over that under a constant buffer, less 1, by the engine `osf`: median and most of the workloads,
with a cycle of 5 ms, Horovod's default up to November 2020. Third: the same gains counted, and with other cycles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from statistics import median
from typing import Any, NamedTuple, TypeAlias

from ablation import changed

import osfmodel as osf
from osfmodel.cost.clusters import pricing_of
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import osf_model
from osfmodel.engine.osf_model import Fusion, fused, idle_flush
from osfmodel.entities.effects import NO_EFFECTS
from osfmodel.entities.files import profiles
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.entities.measurement import Measurement
from osfmodel.entities.plan import Plan
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.units import MIB
from osfmodel.entities.workload import Workload
from osfmodel.ledger import LEDGER, Row, Verdict, recipe
from osfmodel.ledger.results import TIME
from osfmodel.ledger.sources import counted, emulated_ddp, low_bandwidth, papers, pollux, published
from osfmodel.solve import SOLVERS
from osfmodel.targets import horovod
from osfmodel.targets.named_plans import make_plan

Judge: TypeAlias = Callable[[Sequence[Measurement]], Verdict]

CLAIMED = (0.005, 0.084)
"""Errors that the abstract gives, over models."""
SHARDED = ("mosaicml-2023", "modalities-leonardo", "internevo", "fms-fsdp")
"""Sources of sharded training, which this model does not know; nor was their network measured."""
TIMED = tuple(
    name
    for name, entry in LEDGER.items()
    if entry.compares == TIME and entry.judge is not published.judge and name not in SHARDED
)
"""Sources of iteration times but those whose network was never measured."""
FOR_MEMORY = ("measured by osf profile, for benchmarks/memory.py", "times of ")
"""How the origin begins of profiles that were made for their memory: their times are a CPU's, or those of another."""
GAIN = (0.322, 1.5)
"""Gains of adaptive fusion over a constant buffer in the abstract."""

# ------------------------------------------------------------------------------------------- first table: the ledger


def _pollux(shape: Callable[[Workload], Workload], profile: Callable[[], Workload]) -> Judge:
    return lambda runs: pollux.judge(runs, shape(profile()), NO_EFFECTS)


def _horovod(plan: str) -> Judge:
    """Horovod's loop by this model instead of by ours."""

    def make(name: str, *rest: Any) -> Plan:
        return make_plan(plan if name == "horovod" else name, *rest)

    def judge(runs: Sequence[Measurement]) -> Verdict:
        with changed(low_bandwidth, make_plan=make):
            return low_bandwidth.judge(runs)

    return judge


def _constant(conditions: Mapping[str, str], workload: Workload, pricing: Pricing) -> Plan:
    """A buffer of the run's threshold with its cycle time and the measured negotiation."""
    loop = horovod.from_conditions(conditions, workload)
    return osf_model.fused(workload, osf_model.Fusion(loop.threshold, loop.cycle, pricing.effects.negotiation))


def _settings(runs: Sequence[Measurement]) -> Verdict:
    with changed(emulated_ddp, stated_plan=_constant):
        return emulated_ddp.judge(runs)


OWN: Mapping[str, Judge] = {
    "pollux-imagenet": _pollux(pollux.rebuilt, partial(osf.load_workload, "resnet50-v100")),
    "pollux-cifar10": _pollux(pollux.as_built, counted.resnet18_cifar10),
    "pollux-deepspeech2": _pollux(pollux.rebuilt, counted.deepspeech2),
    "pollux-ncf": _pollux(pollux.as_built, counted.ncf),
    "horovod-lowbandwidth": _horovod(osf_model.CONSTANT_PLAN),
    "emulated-horovod": _settings,
}
"""Sources that are judged with other buckets or prices than under our engine; the others differ in the engine alone."""
PRICES = {
    "bcaffe": "measured in the runs",
    "ddl-benchmarks": "from other runs",
    "pytorch-ddp": "data sheets",
    "horovod-lowbandwidth": "bandwidth as set",
    "emulated-ddp": "measured before",
    "emulated-runtime": "measured before",
    "emulated-horovod": "measured before",
    "emulated-sparse": "measured before",
    "emulated-memory": "measured before",
    "papers": "published lines",
    **{source: "from the smallest batch" for source in LEDGER if source.startswith("pollux")},
}
"""Sources of the price of an all-reduce."""


class Judged(NamedTuple):
    """Signed errors of one source by this model and by ours, on the same rows, and how many it cannot express."""

    source: str
    osf: Sequence[float]
    ours: Sequence[float]
    beyond: int

    def __str__(self) -> str:
        cells = [self.source, PRICES[self.source], str(len(self.osf)), str(self.beyond)]
        for errors in (self.osf, self.ours):
            sizes = [abs(error) for error in errors]
            within = sum(size <= CLAIMED[1] for size in sizes) / len(sizes)
            cells += [f"{median(sizes):.1%}", f"{max(sizes):.1%}", f"{median(errors):+.1%}", f"{within:.0%}"]
        return f"| {' | '.join(cells)} |"


def _carried_out(workload: Workload, plan: Plan, pricing: Pricing) -> Timeline:
    """By this model; what it cannot express takes no time that is a number."""
    if plan.plain:
        return osf_model.predict_timeline(workload, plan, pricing)
    return replace(osf.ENGINES["auto"].carry_out(workload, plan, pricing), iteration_time=math.nan)


def by_osf(source: str, judge: Judge | None = None) -> tuple[Row, ...]:
    """The rows of a source as this model predicts them; NaN for those that it cannot express."""
    chosen = judge or OWN.get(source, LEDGER[source].judge)
    with changed(recipe, predict_timeline=_carried_out), changed(papers, predict_timeline=_carried_out):
        return chosen(load_measurements(source)).rows


def judged(source: str, judge: Judge | None = None) -> Judged:
    """Both models on the rows of a source on which nothing was fitted."""
    ours = LEDGER[source].judge(load_measurements(source)).rows
    pairs = [
        (theirs.error, own.error)
        for theirs, own in zip(by_osf(source, judge), ours, strict=True)
        if own.counts and theirs.error is not None and own.error is not None
    ]
    known = [(theirs, own) for theirs, own in pairs if not math.isnan(theirs)]
    return Judged(source, [theirs for theirs, _ in known], [own for _, own in known], len(pairs) - len(known))


HEAD = (
    "| source | price of an all-reduce | runs | not expressible | `osf` median | worst | bias | within 8.4 % "
    "| ours median | worst | bias | within 8.4 % |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)

# --------------------------------------------------------------------------------------- second table: adaptive fusion

BUFFERS = (1, 2, 4, 8, 16, 32, 64, 128)
"""MiB."""
COLUMNS = (*(f"{size} MiB" for size in BUFFERS), "the best of these")
CYCLE = 0.005
"""Seconds: Horovod's default, with 64 MiB, until November 2020 (pull request 2468)."""
OTHER_CYCLES = (0.001, None)
"""Horovod's default since then; and no clock, so that what the clock costs can be told from what the buffer does."""
NETWORKS = (
    ("v100-10gbe", (8, 16, 32, 64)),
    ("v100-56gib", (8, 16, 32, 64)),
    ("k80-10gbe-ring", (8, 64)),
    ("azure-a100-hdr", (8, 64)),
    ("h100-node", (8,)),
)
RULES = ("idle flush", "exact plan")


class Gains(NamedTuple):
    """For all workloads on one network, by which part each rule scales better than each buffer.

    cycle: seconds, or None for no clock
    cells: rule -> a row for each workload, with a gain for each of BUFFERS
    """

    network: str
    workers: int
    cycle: float | None
    cells: Mapping[str, Sequence[Sequence[float]]]

    def lines(self) -> Iterator[str]:
        """A row for each rule: median and most of the workloads for each buffer, and against the best buffer."""
        for rule, rows in self.cells.items():
            columns = [*zip(*rows, strict=True), [min(row) for row in rows]]
            cells = [f"{median(column):.0%}, {max(column):.0%}" for column in columns]
            yield f"| {self.network} | {self.workers} | {rule} | {' | '.join(cells)} |"


def adaptive_factors(workload: Workload, pricing: Pricing) -> Sequence[float]:
    """Scaling factors under each of RULES, which know no cycle."""
    cost = pricing.cost()
    optimal = SOLVERS["optimal"].solve(osf.Question(workload, pricing)).require_plan()
    return [_factor(workload, plan, pricing) for plan in (idle_flush(workload, cost), optimal)]


def constant_factors(workload: Workload, pricing: Pricing, cycle: float | None) -> Sequence[float]:
    """Scaling factors under each of BUFFERS; those that fuse alike are timed once."""
    plans = [fused(workload, Fusion(size * MIB, cycle)) for size in BUFFERS]
    known = {plan: _factor(workload, plan, pricing) for plan in dict.fromkeys(plans)}
    return [known[plan] for plan in plans]


def _factor(workload: Workload, plan: Plan, pricing: Pricing) -> float:
    return osf_model.predict_timeline(workload, plan, pricing).scaling_factor


@cache
def workloads() -> Sequence[Workload]:
    found = [osf.load_workload(name) for name in profiles.names("workload")]
    return [workload for workload in found if not workload.source.origin.startswith(FOR_MEMORY)]


@cache
def _seen(network: str, workers: int) -> Pricing:
    """The prices that this model sees of a network."""
    return osf_model.seen(pricing_of(osf.load_cluster(network), workers))


@cache
def _adaptive(network: str, workers: int) -> Sequence[Sequence[float]]:
    """Factors of every bundled workload, the same at every cycle."""
    return [adaptive_factors(workload, _seen(network, workers)) for workload in workloads()]


def gains(network: str, workers: int, cycle: float | None) -> Gains:
    """Every bundled workload on one network."""
    cells: dict[str, list[list[float]]] = {rule: [] for rule in RULES}
    for workload, adaptive in zip(workloads(), _adaptive(network, workers), strict=True):
        constant = constant_factors(workload, _seen(network, workers), cycle)
        for rule, factor in zip(RULES, adaptive, strict=True):
            cells[rule].append([factor / other - 1 for other in constant])
    return Gains(network, workers, cycle, cells)


def all_gains(cycle: float | None) -> list[Gains]:
    return [gains(network, workers, cycle) for network, counts in NETWORKS for workers in counts]


def counted_gains(found: Sequence[Gains], shown: Sequence[str]) -> Iterator[str]:
    """How many gains are below, within and above the claimed range, over all networks, for the buffers ``shown``."""
    cycle = "none" if found[0].cycle is None else f"{found[0].cycle * 1e3:g} ms"
    for rule in RULES:
        rows = [row for one in found for row in one.cells[rule]]
        columns = [*zip(*rows, strict=True), [min(row) for row in rows]]
        for name, column in zip(COLUMNS, columns, strict=True):
            if name not in shown:
                continue
            inside = sum(GAIN[0] <= gain <= GAIN[1] for gain in column)
            slower = sum(gain < 0 for gain in column)
            above = sum(gain > GAIN[1] for gain in column)
            below = len(column) - slower - inside - above
            figures = f"{slower} | {below} | {inside} | {above} | {median(column):.1%} | {max(column):.1%}"
            yield f"| {cycle} | {rule} | {name} | {figures} |"


GAINS_HEAD = f"| network | workers | rule | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 3)}"
COUNTS_HEAD = (
    "| cycle | rule | over a buffer of | slower | gain below 32.2 % | 32.2 to 150 % | above 150 % | median | most |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def ledger_table(sources: Sequence[str] = TIMED) -> Iterator[str]:
    yield HEAD
    for source in sources:
        yield str(judged(source))


def gains_tables() -> Iterator[str]:
    found = all_gains(CYCLE)
    yield GAINS_HEAD
    for one in found:
        yield from one.lines()
    yield ""
    yield COUNTS_HEAD
    yield from counted_gains(found, COLUMNS)
    for cycle in OTHER_CYCLES:
        yield from counted_gains(all_gains(cycle), ("64 MiB", COLUMNS[-1]))


if __name__ == "__main__":
    print("\n".join([*ledger_table(), "", *gains_tables()]))
