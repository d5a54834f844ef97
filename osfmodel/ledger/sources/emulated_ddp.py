"""PyTorch and Horovod with gloo between emulated hosts (network namespaces, shaped links).

Measured with benchmarks/live.py, live_horovod.py, live_sparse.py and live_memory.py.

Replays of three workloads under several plans. Each run is predicted from the bundled workload, scaled as it was
replayed, and the bundled cluster, which ``osf bench`` measured between the same hosts before the runs; nothing is
fitted to them. The plan is that of the buckets which DDP formed, as it logged them, what the executor was given, or
what Horovod's loop makes of the settings that it had.

A cell is a plan on one workload, cluster and set of options; its repeats took turns with the other plans. If they
differ by more than 5 % the cell is listed and not counted: a rule from before the runs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache
from itertools import accumulate

from osfmodel.cost.clusters import load_cluster, pricing_of
from osfmodel.cost.pricing import Pricing
from osfmodel.entities.batches import Variation, variation_of
from osfmodel.entities.errors import DataError
from osfmodel.entities.files import profiles
from osfmodel.entities.measurement import Measurement
from osfmodel.entities.plan import Plan, contiguous_plan
from osfmodel.entities.workload import Workload
from osfmodel.ledger.as_used import Job
from osfmodel.ledger.recipe import asked_of, row_at, row_of, stated_plan, without_unsteady
from osfmodel.ledger.results import Row, Verdict


def judge(
    measurements: Sequence[Measurement], change: Callable[[Pricing], Pricing] = lambda pricing: pricing
) -> Verdict:
    """Predict all runs, and mark those of unsteady cells; ``change`` changes prices (for an ablation)."""
    return Verdict(
        without_unsteady(measurements, list(_rows(measurements, change))),
        "nothing: workloads and plans as replayed, the network as osf bench measured it before",
    )


def _rows(measurements: Sequence[Measurement], change: Callable[[Pricing], Pricing]) -> Iterator[Row]:
    """The runs beside their predictions, of which repeats of a plan share one."""
    known: dict[Hashable, Row] = {}
    for run in measurements:
        workload = _workload(run.workload, variation_of(dict(run.conditions)))
        found = known.get(asked_of(run))
        if found is None or found.predicted is None:
            pricing = pricing_of(load_cluster(run.cluster), run.workers)
            pricing = change(pricing.under(dict(run.conditions)))
            found = known[asked_of(run)] = row_of(run, workload, pricing, carried_out(run, workload, pricing))
            yield found
        else:
            yield row_at(run, workload, found.predicted)


def jobs(measurements: Sequence[Measurement]) -> Iterator[Job | str]:
    """Each steady run as a user would ask for it: the same, since nothing is fitted here; one job for all repeats."""
    known: dict[Hashable, Job] = {}
    for run, row in zip(measurements, judge(measurements).rows, strict=True):
        if not row.counts:
            yield row.note
            continue
        if asked_of(run) not in known:
            workload = _workload(run.workload, variation_of(dict(run.conditions)))
            pricing = pricing_of(load_cluster(run.cluster), run.workers).under(dict(run.conditions))
            plan = carried_out(run, workload, pricing)
            known[asked_of(run)] = Job(workload, run.cluster, plan, conditions=dict(run.conditions))
        yield known[asked_of(run)]


@cache
def _workload(name: str, variation: Variation) -> Workload:
    return variation.of(profiles.load_workload(name))


def carried_out(run: Measurement, workload: Workload, pricing: Pricing) -> Plan:
    """The plan of a run. Raises as :func:`formed` and :func:`stated_plan`."""
    plan = stated_plan(dict(run.conditions), workload, pricing)
    return formed(run, workload) if plan is None else plan


def formed(run: Measurement, workload: Workload) -> Plan:
    """The plan of the buckets that DDP formed. Raises DataError where they are not runs of the workload's tensors."""
    reached = dict(zip(accumulate(workload.gradients.sizes), range(1, len(workload.gradients) + 1), strict=True))
    try:
        return contiguous_plan(
            workload, [reached[end] for end in accumulate(map(int, run.condition("buckets").split()))]
        )
    except (KeyError, ValueError):
        raise DataError(f"the buckets of {run.plan!r} do not hold consecutive tensors of {workload.name!r}") from None
