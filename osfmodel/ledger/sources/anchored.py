"""Recipe for series of runs whose computation was never measured alone: one of them gives its pace.

A series shares everything that decides how fast a GPU computes. The pace, in seconds for 10^12 floating-point
operations, is the one with which the prediction of its first run, on the fewest GPUs, takes as long as was measured.
That run is fitted and not judged. All others are predicted as a user would: ``nccl:`` words, the plan of a framework's
default, and this pace. Since several GPUs showed it, the usual effects on GPUs are in it, and are not charged again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace

from osfmodel.cost.clusters import load_cluster, pricing_of
from osfmodel.engine import predict_timeline
from osfmodel.entities.executors import FSDP
from osfmodel.entities.measurement import Measurement
from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Workload
from osfmodel.ledger.as_used import Job, Jobs, asked
from osfmodel.ledger.recipe import Settings, StatedRun, label_of, not_predicted, row_of
from osfmodel.ledger.results import Row, Verdict

ANCHOR = "the computation of its series was fitted on it"
ALONE = "no other run of its series, to take the pace of its computation from"


def jobs(settings: Settings) -> Jobs:
    """(runs) -> each run as a user would ask for it, at the pace of the first run of its series."""

    def found(runs: Sequence[Measurement]) -> Iterator[Job | str]:
        stated = settings(runs)
        series: dict[Hashable, list[tuple[tuple[int, ...], int, StatedRun]]] = {}
        for place, one in enumerate(stated):
            if not isinstance(one, str):
                series.setdefault(one.series, []).append((one.order, place, one))
        first = {name: min(own, key=lambda found: found[:2]) for name, own in series.items() if len(own) > 1}
        anchors = {name: place for name, (_, place, _) in first.items()}
        paces = {name: pace(runs[place], one) for name, (_, place, one) in first.items()}
        for place, (run, one) in enumerate(zip(runs, stated, strict=True)):
            if isinstance(one, str):
                yield one
            elif one.series not in paces:
                yield ALONE
            else:
                workload = one.build(paces[one.series])
                yield ANCHOR if anchors[one.series] == place else _job(run, one, workload, one.micro_batches)

    return found


def judge(settings: Settings, fitted_on: str) -> Callable[[Sequence[Measurement]], Verdict]:
    """(runs) -> the verdict on them; ``fitted_on``: on which runs their paces were fitted."""

    def judged(runs: Sequence[Measurement]) -> Verdict:
        return Verdict(tuple(map(_row, runs, jobs(settings)(runs))), fitted_on)

    return judged


def pace(run: Measurement, setting: StatedRun) -> float:
    """Seconds for 10^12 floating-point operations with which the prediction of ``run`` takes as long as it did.

    Of micro-batches that are alike one is predicted, without the update, which comes once.
    """
    from scipy.optimize import brentq

    counted = setting.build(1.0)
    target, micro_batches = run.iteration_time, setting.micro_batches
    if setting.alike:
        target = (target - counted.update_time / _ranks(run, setting)) / micro_batches
        micro_batches = 1

    def excess(seconds: float) -> float:
        workload = setting.build(seconds)
        workload = replace(workload, update_time=0) if setting.alike else workload
        asked_for = asked(_job(run, setting, workload, micro_batches), run.workers)
        return predict_timeline(*asked_for).iteration_time - target

    operations = counted.forward_time + counted.backward_time
    return float(brentq(excess, EPSILON, target / micro_batches / operations, xtol=EPSILON, rtol=1e-8))


EPSILON = 1e-12
"""A pace at which computation takes next to no time."""


def _ranks(run: Measurement, setting: StatedRun) -> int:
    plan = _job(run, setting, setting.build(1.0), 1).plan
    assert isinstance(plan, Plan)
    assert plan.sharding is not None
    return plan.sharding.ranks(run.workers)


def _job(run: Measurement, setting: StatedRun, workload: Workload, micro_batches: int) -> Job:
    pricing = pricing_of(load_cluster(run.cluster), run.workers, workload)
    return Job(workload, run.cluster, setting.plan(workload, pricing, micro_batches), FSDP.conditions)


def _row(run: Measurement, job: Job | str) -> Row:
    if job == ANCHOR:
        return Row(label_of(run), run.iteration_time, run.iteration_time, fitted=True, is_time=True)
    if isinstance(job, str):
        return not_predicted(run, job)
    found = asked(job, run.workers)
    return row_of(run, found.workload, found.pricing, found.plan)
