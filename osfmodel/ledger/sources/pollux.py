"""AdaptDL (PyTorch DDP) on T4 GPUs, four in a node: many placements, each over several batch sizes, four models.

Sources:

* compute time of each batch size: the run on one GPU, which is under DDP too, so that its hooks and copies are in it;
* tensors, and when each is ready as a share of that time: ``resnet50-v100`` (measured on another GPU); the other three
  models are reconstructed from their code (``osfmodel.ledger.sources.counted``);
* buckets: those of DDP's defaults. ResNet-50 and DeepSpeech2 have images of NVIDIA's PyTorch 20.10 (1.7), which
  rebuilds them in ready order, ResNet-18 and NCF of 20.03 (1.5), which does not;
* how much slower computation is while a collective runs: 0.189, as published (arXiv 2507.03114).

No all-reduce was measured alone. Fitted, for each placement, on its run with the smallest batch: seconds per byte. All
larger batches are predicted. ``sync_time`` of the files is not used: it was measured in the very runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import FREE, AffineCost
from osfmodel.engine.recursion import predict_timeline
from osfmodel.entities.effects import CITED_SLOWDOWN, Effects
from osfmodel.entities.files import profiles
from osfmodel.entities.measurement import Measurement
from osfmodel.entities.plan import Plan, one_by_one
from osfmodel.entities.workload import Layer, Workload
from osfmodel.ledger.as_used import Job, Jobs, at_pace
from osfmodel.ledger.recipe import from_input, row_of, with_compute_time
from osfmodel.ledger.results import Row, Verdict
from osfmodel.ledger.sources import counted
from osfmodel.solve.caps import DDP_LIMITS
from osfmodel.targets.named_plans import make_plan

EFFECTS = Effects(compute_slowdown=CITED_SLOWDOWN)
ALONE = "1"
"""The placement of the runs on one GPU."""
MOST_SECONDS_PER_BYTE = 1e-6
"""1 MB/s in seconds per byte: no network here is slower."""

Group = Mapping[int, Measurement]
"""The runs of one placement by batch size."""
Fitted = tuple[int, AffineCost]
"""The batch size of the fitted run, and the cost that gives its time."""


def judge_imagenet(measurements: Sequence[Measurement]) -> Verdict:
    """Judge ResNet-50: all batches of a placement but the smallest, from that one and the runs on one GPU."""
    return judge(measurements, imagenet())


def judge_cifar10(measurements: Sequence[Measurement]) -> Verdict:
    """Judge ResNet-18 on images of 32 x 32 in the same way."""
    return judge(measurements, cifar10())


def judge_deepspeech2(measurements: Sequence[Measurement]) -> Verdict:
    """Judge DeepSpeech2 in the same way."""
    return judge(measurements, deepspeech2())


def judge_ncf(measurements: Sequence[Measurement]) -> Verdict:
    """Judge NeuMF in the same way."""
    return judge(measurements, ncf())


def jobs(profile: Callable[[], Workload]) -> Jobs:
    """(runs) -> each run as a user would ask for it, with its batch's time on one GPU, the network in words."""

    def found(measurements: Sequence[Measurement]) -> Iterator[Job | str]:
        buckets = profile()
        alone = {
            batch: at_pace(buckets, run.iteration_time, "T4")
            for batch, run in _groups(measurements)["placements", ALONE].items()
        }
        for run in measurements:
            gpus = _gpus_per_node(run)
            if gpus is None or _batch(run) not in alone:
                yield "nodes with different numbers of GPUs" if gpus is None else "no time of this batch on one GPU"
                continue
            workload = alone[_batch(run)]
            yield Job(workload, f"nccl:t4x{gpus},50Gbps/node,ena", one_by_one(workload))

    return found


def imagenet() -> Workload:
    """The buckets of ResNet-50."""
    return rebuilt(profiles.load_workload("resnet50-v100"))


def cifar10() -> Workload:
    """The buckets of ResNet-18 on small images."""
    return as_built(counted.resnet18_cifar10())


def deepspeech2() -> Workload:
    """The buckets of DeepSpeech2."""
    return rebuilt(counted.deepspeech2())


def ncf() -> Workload:
    """The buckets of NeuMF."""
    return as_built(counted.ncf())


def _gpus_per_node(run: Measurement) -> int | None:
    """GPUs of each node, from a placement such as ``22`` or ``16/4`` (GPUs and nodes); None if they differ."""
    workers, separator, nodes = run.condition("placement").partition("/")
    if separator:
        return int(workers) // int(nodes) if int(workers) % int(nodes) == 0 else None
    return int(workers[0]) if len(set(workers)) == 1 else None


def rebuilt(profile: Workload) -> Workload:
    """The buckets of PyTorch 1.6 and later: rebuilt in ready order."""
    return by_bucket(profile, make_plan("ddp", profile, Pricing.of(FREE)))


def as_built(profile: Workload) -> Workload:
    """The buckets of PyTorch up to 1.5: as built on a walk from the input."""
    return by_bucket(profile, from_input(profile, DDP_LIMITS))


def judge(measurements: Sequence[Measurement], buckets: Workload, effects: Effects = EFFECTS) -> Verdict:
    """Predict from the buckets of a profile (sizes, shares of the compute time), with ``effects``."""
    groups = _groups(measurements)
    alone = {
        batch: with_compute_time(buckets, run.iteration_time) for batch, run in groups["placements", ALONE].items()
    }
    costs = {key: _fitted(group, alone, effects) for key, group in groups.items()}
    rows = tuple(_row(run, alone, costs[_key(run)], effects) for run in measurements)
    return Verdict(
        rows,
        "seconds per byte of each placement, on its run with the smallest batch; compute time of each batch size, "
        f"on one GPU; computation slowed by {effects.compute_slowdown:g} under a collective, as published",
    )


def _groups(measurements: Sequence[Measurement]) -> dict[tuple[str, str], dict[int, Measurement]]:
    groups: dict[tuple[str, str], dict[int, Measurement]] = {}
    for run in measurements:
        groups.setdefault(_key(run), {})[_batch(run)] = run
    return groups


def _key(run: Measurement) -> tuple[str, str]:
    return run.condition("file"), run.condition("placement")


def _batch(run: Measurement) -> int:
    return int(run.condition("batch_size"))


def _row(run: Measurement, alone: Mapping[int, Workload], fitted: Fitted, effects: Effects) -> Row:
    smallest, cost = fitted
    workload = alone[_batch(run)]
    known = run.workers == 1 or _batch(run) == smallest
    return row_of(run, workload, Pricing.of(cost, effects), one_by_one(workload), fitted=known)


def _fitted(group: Group, alone: Mapping[int, Workload], effects: Effects) -> Fitted:
    """Seconds per byte of a placement, fitted on its run with the smallest batch; none on one GPU."""
    smallest = min(group)
    run = group[smallest]
    if run.workers == 1:
        return smallest, FREE
    return smallest, AffineCost(((0.0, seconds_per_byte(run, alone[smallest], effects)),))


def seconds_per_byte(run: Measurement, workload: Workload, effects: Effects) -> float:
    """Seconds per byte of all-reduce with which ``workload`` takes as long as ``run``; 0 if it is slower even so."""
    from scipy.optimize import brentq

    plan = one_by_one(workload)

    def excess(per_byte: float) -> float:
        cost = AffineCost(((0.0, per_byte),))
        return predict_timeline(workload, plan, cost, effects, run.workers).iteration_time - run.iteration_time

    if excess(0.0) >= 0:
        return 0.0
    return float(brentq(excess, 0.0, MOST_SECONDS_PER_BYTE, xtol=1e-15, rtol=1e-9))


def by_bucket(workload: Workload, plan: Plan) -> Workload:
    """One layer per bucket of a plan in ready order: its ready time and size, all that the recursion needs."""
    gradients = workload.gradients
    ready = dict(zip(gradients.names, gradients.ready_times, strict=True))
    layers: list[Layer] = []
    clock = workload.forward_time
    for number, bucket in enumerate(plan.buckets):
        now = max(ready[block.layer] for block in bucket.blocks)
        layers.append(Layer(f"bucket {number}", 0.0, now - clock, bucket.size))
        clock = now
    rest = Layer("rest", workload.forward_time, workload.forward_time + workload.backward_time - clock, 0)
    return replace(workload, layers=(rest, *reversed(layers)))
