"""MG-WFBP predicted from one-shot and per-tensor runs: PyTorch 1.4 with Horovod, 4 to 32 GPUs, 4 in a node, 2 networks.

The benchmark fuses gradients itself (Horovod's fusion is off), so what each message holds is known:

* ``single``: everything in one message after the last gradient;
* ``wfbp``: one message per tensor;
* ``mg-wfbp``: merged by Algorithm 1 of MG-WFBP, with start-up and bandwidth from the constants written into the code
  (``mg-wfbp-rule-10gbe`` and ``-56gib``, whatever the network does), and never a message below 8192 elements.

Fitted, for each workload, network and number of GPUs, on its ``single`` and ``wfbp`` runs: seconds per byte and seconds
per message. Fitted once, on the six ``single`` runs of 4 GPUs: what the update of a tensor costs where it has to wait
for an all-reduce. AdamW launches some seven kernels per tensor (a trace in the repository); alone they queue up behind
the backward pass, but after an all-reduce the GPU has nothing else to do. No ``mg-wfbp`` run on several GPUs is used.

Compute time is that of the run on one GPU. Runs with a parameter server are not predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from osfmodel.cost import cost_of
from osfmodel.cost.clusters import load_cluster
from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import FREE, AffineCost
from osfmodel.engine.recursion import communication_finish, predict_timeline
from osfmodel.entities.effects import NO_EFFECTS, Effects
from osfmodel.entities.executors import HOROVOD
from osfmodel.entities.files import profiles
from osfmodel.entities.measurement import Measurement
from osfmodel.entities.plan import Plan, contiguous_plan, in_one, one_by_one
from osfmodel.entities.workload import Workload
from osfmodel.ledger.as_used import Job, at_pace
from osfmodel.ledger.recipe import not_predicted, row_of
from osfmodel.ledger.results import Row, Verdict
from osfmodel.solve.published import mg_wfbp
from osfmodel.solve.published.regression import linear

ADAMW_BYTES = 76
"""Bytes of memory traffic per parameter: 19 reads and writes of a float in the 7 kernels of AdamW (transformers 2)."""
MEMORY_BANDWIDTH = 616e9
"""Bytes per second by the data sheet of the RTX 2080 Ti, which the runs are believed to have used (it is not stated).
Only how much of the compute time is update, and so cannot hide communication, hangs on it: the median |error| of all
rows is 1.4 % with 448 GB/s, 2.2 % as it is and 2.9 % with 900 (benchmarks/ablation.py)."""
ADAMW = ("bert-base-seq64-reconstructed", "bert-large-seq64-reconstructed")
"""Workloads trained with AdamW. ResNet-50 has plain SGD, which is one kernel per tensor."""
LEAST = 4 * 8192
"""The merge rule takes the next gradient in any case while a message is below 8192 elements."""
RULES = {"ddl-benchmarks-10gbe": "mg-wfbp-rule-10gbe", "ddl-benchmarks-100gib": "mg-wfbp-rule-56gib"}
NODE = 4
"""GPUs in a node: a run on no more of them has no network."""
FITTED_PLANS = ("single", "wfbp")

Setting = tuple[str, str, int]
"""Workload, cluster, workers."""
Times = Mapping[tuple[str, str, int, str], float]
"""Iteration times by setting and plan."""


class Calibration(NamedTuple):
    """The parameters that are fitted.

    alone:    the workloads on one GPU
    together: the same if the update has to wait for an all-reduce
    launch:   extra seconds per tensor that the update then takes under AdamW
    lines:    seconds per message and per byte
    """

    alone: Mapping[str, Workload]
    together: Mapping[str, Workload]
    launch: float
    lines: Mapping[Setting, AffineCost]


def judge(measurements: Sequence[Measurement], effects: Effects = NO_EFFECTS) -> Verdict:
    """Predict the MG-WFBP runs on several GPUs from the one-shot and per-tensor ones, with ``effects`` in all."""
    found = calibrate(measurements, effects)
    return Verdict(
        tuple(_row(run, found, effects) for run in measurements),
        "seconds per byte and message of each workload, network and count, on single and wfbp. "
        f"{found.launch * 1e3:.2f} ms of update per tensor under AdamW, on single with 4 GPUs. Compute on 1 GPU",
    )


NETWORKS = {
    "ddl-benchmarks-10gbe": "nccl:rtx2080tix4,10Gbps/node,tcp",
    "ddl-benchmarks-100gib": "nccl:rtx2080tix4,100Gbps/node,ib",
}
"""The networks in words; the GPU is not stated, and believed to be the RTX 2080 Ti."""


def jobs(measurements: Sequence[Measurement]) -> Iterator[Job | str]:
    """Each run as a user would ask for it: the messages that were sent, on a network in words."""
    alone = {run.workload: run.iteration_time for run in measurements if (run.workers, run.plan) == (1, "single")}
    for run in measurements:
        if run.plan.endswith("-ps") or run.cluster not in NETWORKS:
            yield "a parameter server, not all-reduce" if run.plan.endswith("-ps") else "InfiniBand used as Ethernet"
            continue
        workload = at_pace(profiles.load_workload(run.workload), alone[run.workload], "RTX 2080 Ti")
        yield Job(workload, NETWORKS[run.cluster], _plan(run, workload), HOROVOD.conditions)


def calibrate(measurements: Sequence[Measurement], effects: Effects = NO_EFFECTS) -> Calibration:
    """Fit the parameters on the runs on one GPU and on those named in FITTED_PLANS."""
    times = {(run.workload, run.cluster, run.workers, run.plan): run.iteration_time for run in measurements}
    alone = {
        name: with_update(profiles.load_workload(name), time)
        for (name, _, workers, plan), time in times.items()
        if (workers, plan) == (1, "single")
    }
    launch = update_launch(alone, times)
    together = {name: with_update_launch(workload, launch) for name, workload in alone.items()}
    settings = dict.fromkeys((run.workload, run.cluster, run.workers) for run in measurements if run.workers > 1)
    lines = {}
    for key in settings:
        single, wfbp = (times[(*key, plan)] for plan in FITTED_PLANS)
        lines[key] = line(together[key[0]], single, wfbp, effects)
    return Calibration(alone, together, launch, lines)


def with_update(workload: Workload, compute_time: float) -> Workload:
    """``workload`` in ``compute_time`` seconds, of which the update takes the time of its memory traffic."""
    update = 0.0
    if workload.name in ADAMW:
        update = ADAMW_BYTES * workload.gradient_bytes / 4 / MEMORY_BANDWIDTH
    factor = (compute_time - update) / (workload.forward_time + workload.backward_time)
    return replace(workload.scaled(factor), update_time=update)


def with_update_launch(workload: Workload, launch: float) -> Workload:
    """``workload`` with an update that starts on an idle GPU, ``launch`` seconds longer for each tensor under AdamW."""
    tensors = len(workload.gradients) if workload.name in ADAMW else 0
    return replace(workload, update_time=workload.update_time + launch * tensors)


def update_launch(workloads: Mapping[str, Workload], times: Times) -> float:
    """Seconds per tensor of an AdamW update that starts on an idle GPU.

    On one node, a single message after the last gradient costs bytes x per_byte + tensors x launch (tensors = 0 without
    AdamW) more than computing alone: least squares on relative errors over all workloads and both networks.
    """
    table = []
    for (name, _, workers, plan), time in times.items():
        if (workers, plan) == (NODE, "single"):
            workload = workloads[name]
            tensors = len(workload.gradients) if name in ADAMW else 0
            table.append((workload.gradient_bytes, tensors, time - workload.compute_time))
    rows = np.array(table, dtype=float)
    solution = np.linalg.lstsq(rows[:, :2] / rows[:, 2:], np.ones(len(rows)), rcond=None)[0]
    return max(float(solution[1]), 0.0)


def line(workload: Workload, single: float, wfbp: float, effects: Effects = NO_EFFECTS) -> AffineCost:
    """Seconds per message and per byte that fit both runs: everything in one message, and one message per tensor.

    Every start-up given to messages is taken from the bytes of the single one, so that it stays as measured; the
    iteration with one message per tensor grows with the start-up, whose root is found. If it is longer than
    measured even without, there is none.
    """
    from scipy.optimize import brentq

    sizes = np.array(workload.gradients.sizes, dtype=float)
    computed = workload.forward_time + workload.backward_time
    exposed = max(single - computed - workload.update_time, 0)

    plan = one_by_one(workload)

    def cost(startup: float) -> AffineCost:
        return AffineCost(((startup, (exposed - startup) / workload.gradient_bytes),))

    def per_tensor(startup: float) -> float:
        if effects != NO_EFFECTS:
            return predict_timeline(workload, plan, cost(startup), effects).iteration_time
        finish = communication_finish(workload.gradients.ready_times, cost(startup)(sizes).tolist())
        return max(finish, computed) + workload.update_time

    if per_tensor(0.0) >= wfbp:
        return cost(0.0)
    if per_tensor(exposed) <= wfbp:
        return cost(exposed)
    return cost(float(brentq(lambda startup: per_tensor(startup) - wfbp, 0.0, exposed, xtol=1e-12, rtol=1e-12)))


def merged_plan(workload: Workload, cluster: str, workers: int) -> Plan:
    """The plan that the benchmark merges from its rule, its constants and the backward times of its own warm-up."""
    gradients = workload.gradients
    startup, per_byte = linear(cost_of(load_cluster(RULES[cluster]), workers))
    ends = mg_wfbp.merge(gradients.ready_times, gradients.sizes, gradients.dtypes, startup, per_byte, LEAST)
    return contiguous_plan(workload, ends)


def _row(run: Measurement, found: Calibration, effects: Effects) -> Row:
    if run.plan.endswith("-ps"):
        return not_predicted(run, "a parameter server, not all-reduce")
    if run.workers == 1:
        workload = found.alone[run.workload]
        return row_of(run, workload, Pricing.of(FREE), _plan(run, workload), fitted=True)
    workload, cost = found.together[run.workload], found.lines[run.workload, run.cluster, run.workers]
    return row_of(run, workload, Pricing.of(cost, effects), _plan(run, workload), fitted=run.plan in FITTED_PLANS)


def _plan(run: Measurement, workload: Workload) -> Plan:
    if run.plan == "mg-wfbp" and run.workers > 1:
        return merged_plan(workload, run.cluster, run.workers)
    return in_one(workload) if run.plan == "single" else one_by_one(workload)
