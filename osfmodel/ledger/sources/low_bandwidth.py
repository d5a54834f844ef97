"""Horovod between V100 nodes with slow links: ResNet-50 and VGG-16 on 4 nodes of one GPU, 2.5 and 5 Gb/s.

Sources:

* compute time: the run on one GPU, data loading included;
* tensors, and when each is ready as a share of that time: ``resnet50-v100`` (measured), ``vgg16-reconstructed``;
* all-reduce: a ring over links of the bandwidth that was set, each step taking 50 us (assumed, see STEP);
* fusion: Horovod's defaults; its version is not stated. With ``fp16`` every gradient is sent as two bytes per element.

Nothing is fitted. Not predicted are runs inside one node, whose links are not stated, and the run during which Horovod
tried one setting after another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from osfmodel.cost import cost_of
from osfmodel.cost.clusters import load_cluster
from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import FREE, Cost
from osfmodel.entities.compression import FP16, compressed
from osfmodel.entities.effects import NO_EFFECTS, Effects
from osfmodel.entities.files import profiles
from osfmodel.entities.measurement import Measurement
from osfmodel.ledger.as_used import Job, at_pace
from osfmodel.ledger.recipe import not_predicted, row_of, with_compute_time
from osfmodel.ledger.results import Row, Verdict
from osfmodel.targets.named_plans import make_plan

STEP = "50us"
"""Assumed step time, after the 45.25 us of B-Caffe's steps over 10 GbE; the runs state none. Much hangs on it: the
median |error| is 6.3 % with 0, 8.8 % as it is and 16.3 % with 200 us (benchmarks/ablation.py, tests/ledger)."""
ALONE = "1 node 1 GPU"
TUNING = "autotune"
"""Last word of the set-up while Horovod tunes itself; a run ``with autotuned params`` used the result."""


def judge(measurements: Sequence[Measurement], effects: Effects = NO_EFFECTS) -> Verdict:
    """Predict the runs between nodes from the stated bandwidth and the run on one GPU."""
    alone = {run.workload: run.iteration_time for run in measurements if run.condition("setup") == ALONE}
    return Verdict(
        tuple(_row(run, alone, effects) for run in measurements),
        "nothing; compute time on one GPU, bandwidth as it was set",
    )


def _row(run: Measurement, alone: Mapping[str, float], effects: Effects) -> Row:
    setup = run.condition("setup")
    if setup.endswith(TUNING):
        return not_predicted(run, "Horovod tried many settings during the run")
    if run.workers > 1 and _bandwidth(setup) is None:
        return not_predicted(run, "the links inside the node are not stated")
    workload = with_compute_time(profiles.load_workload(run.workload), alone[run.workload])
    if FP16 in setup:
        workload = compressed(workload, FP16)
    cost = cost_between(run.workers, setup)
    plan = make_plan("wfbp" if run.workers == 1 else "horovod", workload, Pricing.of(cost))
    return row_of(run, workload, Pricing.of(cost, effects), plan, fitted=run.workers == 1)


def jobs(measurements: Sequence[Measurement]) -> Iterator[Job | str]:
    """Each run as a user would ask for it."""
    alone = {run.workload: run.iteration_time for run in measurements if run.condition("setup") == ALONE}
    for run in measurements:
        setup = run.condition("setup")
        if setup.endswith(TUNING) or (run.workers > 1 and _bandwidth(setup) is None):
            yield "other settings from step to step, or links that are not stated"
            continue
        workload = at_pace(profiles.load_workload(run.workload), alone[run.workload], "V100")
        sent = compressed(workload, FP16) if FP16 in setup else workload
        yield Job(sent, f"ring:{STEP},{_bandwidth(setup) or 1}Gbps", "horovod")


def cost_between(workers: int, setup: str) -> Cost:
    """A ring over links of the bandwidth in ``setup``, such as "4x1 5 Gb/s fp16 all-reduce"."""
    if workers == 1:
        return FREE
    return cost_of(load_cluster(f"ring:{STEP},{_bandwidth(setup)}Gbps"), workers)


def _bandwidth(setup: str) -> str | None:
    found = re.search(r"([0-9.]+) Gb/s", setup)
    return found[1] if found else None
