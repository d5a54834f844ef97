"""Runs whose network was never measured apart: all that is known is the time on one GPU, and data sheets.

DLPerf (8 V100 in a node, one 100 Gb/s InfiniBand adapter each), PyTorch's DDP benchmark on GH200, and Gavel's ResNets
in one machine. Nothing is fitted: each run is predicted as a user predicts it, with the usual effects of GPUs, of which
some were learned from these very sources; the column *as used* of ``osf check`` leaves those out.

What is not known: the profile of BERT has shorter sequences than DLPerf's; with mixed precision gradients are taken to
be sent as float32; Gavel states neither the machines nor whether its ResNet-18 is the one for small images.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from osfmodel.entities.files import profiles
from osfmodel.entities.measurement import Measurement
from osfmodel.entities.workload import Workload
from osfmodel.ledger.as_used import Job, asked, at_pace
from osfmodel.ledger.recipe import not_predicted, row_of
from osfmodel.ledger.results import Row, Verdict
from osfmodel.ledger.sources import counted

INPUT_BOUND = "worker=8"
"""Option of DLPerf's PyTorch runs with 8 threads that load data, which is too few for 8 GPUs, as it says."""
GPUS = {"nccl:v100x8,100Gbps/node,ib": "V100", "nccl:gh200x4,200Gbps,roce": "GH200"}


def judge(measurements: Sequence[Measurement]) -> Verdict:
    """Predict every run on several GPUs from that on one."""
    rows = map(_row, measurements, jobs(measurements))
    return Verdict(tuple(rows), "nothing; compute time on one GPU, all-reduce from data sheets, usual effects of GPUs")


def _row(run: Measurement, job: Job | str) -> Row:
    if isinstance(job, str):
        return not_predicted(run, job)
    workload, plan, pricing = asked(job, run.workers)
    return row_of(run, workload, pricing, plan, fitted=run.workers == 1)


def jobs(measurements: Sequence[Measurement]) -> Iterator[Job | str]:
    """Each run as a user would ask for it."""
    alone: dict[Hashable, float] = {}
    for run in measurements:
        if run.workers == 1 and (run.plan == "none" or _series(run) not in alone):
            alone[_series(run)] = run.iteration_time
    for run in measurements:
        if INPUT_BOUND in dict(run.conditions).get("option", ""):
            yield "its input was too slow, as the source says"
        elif _series(run) not in alone:
            yield "no run on one GPU with the same settings"
        else:
            gpu = GPUS.get(run.cluster) or run.condition("gpu")
            plan = "ddp" if run.plan == "none" else run.plan
            yield Job(at_pace(_profile(run.workload), alone[_series(run)], gpu), run.cluster, plan)


def _series(run: Measurement) -> Hashable:
    """Everything that runs on one and on several GPUs share."""
    return run.workload, run.cluster, tuple(pair for pair in run.conditions if pair[0] != "layout")


def _profile(name: str) -> Workload:
    small = counted.resnet18_cifar10()
    return small if name == small.name else profiles.load_workload(name)
