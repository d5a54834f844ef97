"""GoogLeNet under B-Caffe on K80 nodes over 10 GbE: priced with the all-reduce times of the runs' own log.

Sources:

* ``googlenet-k80-tensors``: sizes and backward times of 128 tensors, from the log of the measured runs;
* ``k80-10gbe-log``: what each message took in those runs, on 2, 4 and 8 nodes;
* ``k80-10gbe-ring``: a = 2(n-1) 45.25 us and b, from which B-Caffe decides what to merge (its scripts/gmwfbp.py);
* the iteration of one node, 64 images on its 2 GPUs: 64 / (images/s) = 392 ms.

Backward stays as logged (202 ms), for the log is of these runs. The rest of the 392 ms comes before it (the log has
nothing on forward, update and input). No parameter is fitted; since one node gives the compute time, its rows are.

ResNet-50 has no tensor profile on a K80, and is not predicted. Nothing is judged as used: the only prices of this MPI
through host memory are the times that these very runs logged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from osfmodel.cost import cost_of
from osfmodel.cost.clusters import load_cluster
from osfmodel.cost.pricing import Pricing
from osfmodel.entities.effects import NO_EFFECTS, Effects
from osfmodel.entities.files import profiles
from osfmodel.entities.measurement import Measurement
from osfmodel.entities.plan import Plan, contiguous_plan, in_one
from osfmodel.entities.workload import Workload
from osfmodel.ledger.recipe import not_predicted, row_of
from osfmodel.ledger.results import Row, Verdict
from osfmodel.solve.published import mg_wfbp
from osfmodel.solve.published.regression import linear

PROFILE = "googlenet-k80-tensors"
LOG = "k80-10gbe-log"
RULE = "k80-10gbe-ring"
PAIRED_FROM = 8
"""Nodes from which the log shows a weight and its bias as one message. With fewer each goes by itself."""


def judge(measurements: Sequence[Measurement], effects: Effects = NO_EFFECTS) -> Verdict:
    """Predict every GoogLeNet run on 2, 4 and 8 nodes. Nothing is fitted to a run on more than one node."""
    alone = next(run for run in measurements if (run.workload, run.workers) == (PROFILE, 1))
    workload = with_forward(profiles.load_workload(PROFILE), alone.iteration_time)
    rows = tuple(_row(run, workload, effects) for run in measurements)
    return Verdict(
        rows,
        "no parameter; compute time is that of the runs on one node, backward and all-reduce times are as logged",
    )


NO_PROFILE = "no tensor profile of ResNet-50 on a K80"


def with_forward(workload: Workload, compute_time: float) -> Workload:
    """``workload`` with the same backward and such a forward that both take ``compute_time`` seconds."""
    factor = (compute_time - workload.backward_time) / workload.forward_time
    layers = tuple(replace(layer, forward_time=layer.forward_time * factor) for layer in workload.layers)
    return replace(workload, layers=layers)


def _row(run: Measurement, workload: Workload, effects: Effects) -> Row:
    if run.workload != PROFILE:
        return not_predicted(run, NO_PROFILE)
    cost = cost_of(load_cluster(LOG), run.workers)
    return row_of(run, workload, Pricing.of(cost, effects), plan_of(run, workload), fitted=run.workers == 1)


def plan_of(run: Measurement, workload: Workload) -> Plan:
    """The messages of a run: all in one, one by one as the log has them, or merged by B-Caffe's rule."""
    gradients = workload.gradients
    if run.plan == "single":
        return in_one(workload)
    if run.plan == "wfbp" or run.workers == 1:
        step = 2 if run.workers >= PAIRED_FROM else 1
        return contiguous_plan(workload, range(step, len(gradients) + 1, step))
    startup, per_byte = linear(cost_of(load_cluster(RULE), run.workers))
    ends = mg_wfbp.merge(gradients.ready_times, gradients.sizes, gradients.dtypes, startup, per_byte)
    return contiguous_plan(workload, ends)
