"""PyTorch DDP on machines of 8 V100 (NVLink, 4 x 100 Gb/s InfiniBand): 1 to 16 GPUs, buckets of 25 MB and of 1 MB.

Sources:

* compute time: the run without DDP, on one GPU;
* tensors, and when each is ready as a share of that time: ``resnet50-v100`` (measured), the others ``-reconstructed``;
* all-reduce: ``nccl-v100-dgx1``, NCCL's own model of such machines, from data sheets; no collective was measured;
* how much slower computation is while a collective runs: 0.189, as published (arXiv 2507.03114).

Calibrated, for each network, on its three runs on one GPU: seconds per bucket, from the change of throughput with
buckets of 1 MB (printed to 0.1 %, while times are to 1 ms), and seconds per byte of DDP's copies, from the run with
buckets of 25 MB. With one worker nothing is sent, so that is all that DDP costs there. Half of the copies are into
buckets, before sending, and half out of them. Nothing is fitted on two GPUs or more.

PyTorch 1.4, which ran here, forms buckets before it has seen an iteration: it walks the parameters from the input, with
a first limit of 1 MiB, and sends the buckets in reverse (distributed.py). The small bucket goes last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from osfmodel.cost import cost_of
from osfmodel.cost.clusters import load_cluster
from osfmodel.cost.pricing import Pricing
from osfmodel.entities.effects import CITED_SLOWDOWN, Effects
from osfmodel.entities.files import profiles
from osfmodel.entities.measurement import Measurement
from osfmodel.entities.plan import Plan
from osfmodel.entities.units import MIB
from osfmodel.entities.workload import Workload
from osfmodel.ledger.as_used import Job, at_pace
from osfmodel.ledger.recipe import from_input, row_of, with_compute_time
from osfmodel.ledger.results import Row, Verdict

CLUSTER = "nccl-v100-dgx1"
FIRST_LIMIT = MIB
"""The first limit of torch 1.4: _DEFAULT_FIRST_BUCKET_BYTES."""
LARGE, SMALL, WITHOUT = "ddp", "ddp-1mib", "none"
"""Names of plans in the measurements."""
LIMITS = {LARGE: 25 * MIB, SMALL: MIB, WITHOUT: 25 * MIB}


class Calibrated(NamedTuple):
    """A network: the compute time of its run without DDP, its plans, and the cost of DDP on one GPU."""

    workload: Workload
    plans: Mapping[str, Plan]
    effects: Effects


def judge(measurements: Sequence[Measurement], off: Sequence[str] = ()) -> Verdict:
    """Predict all runs on two GPUs or more from those on one; ``off`` names effects to leave out (for an ablation)."""
    known = {
        name: calibrated([run for run in measurements if run.workload == name])
        for name in dict.fromkeys(run.workload for run in measurements)
    }
    return Verdict(
        tuple(_row(run, known[run.workload], off) for run in measurements),
        "compute time, and DDP's seconds per bucket and per copied byte, of each network on its 3 runs on one GPU. "
        f"Computation slowed by {CITED_SLOWDOWN:g} under a collective, as published. All-reduce from data sheets",
    )


def jobs(measurements: Sequence[Measurement]) -> Iterator[Job | str]:
    """Each run as a user would ask for it: no calibrated copies and hooks, the network in words."""
    alone = {run.workload: run.iteration_time for run in measurements if run.plan == WITHOUT}
    for run in measurements:
        workload = at_pace(profiles.load_workload(run.workload), alone[run.workload], "V100")
        yield Job(workload, "nccl:v100x8,400Gbps/node,ib", from_input(workload, (FIRST_LIMIT, LIMITS[run.plan])))


def calibrated(runs: Sequence[Measurement]) -> Calibrated:
    """Calibrate from the runs of one network on one GPU; other runs are ignored."""
    alone = {run.plan: run for run in runs if run.workers == 1}
    workload = with_compute_time(profiles.load_workload(runs[0].workload), alone[WITHOUT].iteration_time)
    plans = {name: from_input(workload, (FIRST_LIMIT, limit)) for name, limit in LIMITS.items()}
    large = alone[LARGE].iteration_time
    small = large / (1 + float(alone[SMALL].condition("throughput_change_percent")) / 100)
    few, many = len(plans[LARGE].buckets), len(plans[SMALL].buckets)
    per_bucket = max((small - large) / (many - few), 0)
    per_byte = max((large - workload.compute_time - per_bucket * few) / workload.gradient_bytes, 0)
    effects = Effects(
        hook_time=per_bucket, copy_in=per_byte / 2, copy_out=per_byte / 2, compute_slowdown=CITED_SLOWDOWN
    )
    return Calibrated(workload, plans, effects)


def _row(run: Measurement, known: Calibrated, off: Sequence[str]) -> Row:
    cost = cost_of(load_cluster(CLUSTER), run.workers)
    effects = Effects() if run.plan == WITHOUT else replace(known.effects, **dict.fromkeys(off, 0.0))
    return row_of(run, known.workload, Pricing.of(cost, effects), known.plans[run.plan], fitted=run.workers == 1)
