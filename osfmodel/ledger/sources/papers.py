"""The speed-ups that MG-WFBP and ASC-WFBP publish, replayed: only ratios of iteration times are compared.

Taken from the papers: compute time per iteration, and the all-reduce as a + b bytes that the authors measured. Taken
from the bundled reconstructions: tensors, in which order they are ready, and when (a FLOPs-and-bytes model fitted to a
measured ResNet-50, scaled to that compute time). Plans are those of the published rules. Nothing is fitted here.

MG-WFBP, TPDS 2021, Fig. 9: 16 V100 (4 nodes of 4), 10GbE and 56 Gb/s InfiniBand, float32 and float16. ASC-WFBP, INFOCOM
2021: 32 GPUs (8 nodes of 4), 10GbE, two all-reduces at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from osfmodel.cost import cost_of
from osfmodel.cost.clusters import load_cluster
from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import AffineCost, Cost
from osfmodel.engine import predict_timeline
from osfmodel.entities.compression import FP16, compressed
from osfmodel.entities.effects import NO_EFFECTS, Effects
from osfmodel.entities.files.profiles import load_workload
from osfmodel.entities.measurement import Measurement
from osfmodel.entities.workload import Workload
from osfmodel.ledger.recipe import with_compute_time
from osfmodel.ledger.results import Row, Verdict
from osfmodel.solve.published import asc_wfbp
from osfmodel.targets.named_plans import make_plan

PUBLISHED_32 = AffineCost(((4.04e-3, 8.64e-10),))
"""Seconds and seconds per byte of 32 GPUs over 10GbE, as in the same group's code (dear_pytorch)."""
PLOTTED_32 = AffineCost(((1.3687e-3, 1.6570e-9),))
"""One all-reduce on the same 8 nodes: comment in the authors' plot script of INFOCOM 2021. For comparison only."""
COMPARED = {"MG-WFBP": ("mg-wfbp", ("wfbp", "single")), "ASC-WFBP": ("asc-wfbp", ("wfbp", "mg-wfbp"))}
"""The method of each paper, and the methods that it is compared with."""
FITTED_ON = "nothing: speed-ups from published compute times and all-reduce costs, with reconstructed workloads"

Prices: TypeAlias = Callable[[Measurement], Cost]


def judge(measurements: Sequence[Measurement]) -> Verdict:
    """A row per published speed-up."""
    return Verdict(tuple(speed_ups(measurements)), FITTED_ON)


def published(run: Measurement) -> Cost:
    """All-reduce cost that the authors measured; at 16 workers that of the bundled clusters."""
    return PUBLISHED_32 if run.workers == 32 else cost_of(load_cluster(run.cluster), run.workers)


def speed_ups(
    measurements: Sequence[Measurement],
    prices: Prices = published,
    rules: Prices = published,
    effects: Effects = NO_EFFECTS,
) -> list[Row]:
    """Time of the other method / time of the paper's own, published against replayed.

    ``prices`` is the true cost of an all-reduce, ``rules`` the cost that the planner assumes: the same, except to test
    plans made from wrong constants.
    """
    groups: dict[tuple[str, ...], dict[str, Measurement]] = {}
    for run in measurements:
        settings = tuple(run.condition(name) for name in ("system", "network", "precision"))
        groups.setdefault((run.workload, *settings), {})[run.plan] = run
    return [
        row
        for runs in groups.values()
        for row in _compare(runs, {name: replay(run, prices(run), rules(run), effects) for name, run in runs.items()})
    ]


def _compare(runs: Mapping[str, Measurement], times: Mapping[str, float]) -> list[Row]:
    own, others = COMPARED[next(iter(runs.values())).condition("system")]
    rows = []
    for other in others:
        measured = runs[other].iteration_time / runs[own].iteration_time
        rows.append(Row(_label(runs[own], other), measured, times[other] / times[own]))
    return rows


def _label(run: Measurement, other: str) -> str:
    model = run.workload.removesuffix("-reconstructed")
    return f"{model} {run.plan} over {other} {run.workers}x {run.condition('network')} {run.condition('precision')}"


def replay(run: Measurement, price: Cost, rule: Cost, effects: Effects = NO_EFFECTS) -> float:
    """Seconds per iteration under the plan of ``run``, made for the cost ``rule`` and priced by ``price``."""
    workload = as_run(load_workload(run.workload), float(run.condition("compute_time_s")), run.condition("precision"))
    pricing = Pricing({"all_reduce": price}, run.workers, asc_wfbp.PUBLISHED_GAIN, effects)
    plan = make_plan(run.plan, workload, Pricing.of(rule))
    return predict_timeline(workload, plan, pricing).iteration_time


def as_run(workload: Workload, compute_time: float, precision: str) -> Workload:
    """``workload`` with all times scaled to ``compute_time``, and half the bytes in ``fp16``.

    Nothing more is known of float16: the shares of time stay those of float32.
    """
    whole = with_compute_time(workload, compute_time)
    return compressed(whole, FP16) if precision == FP16 else whole
