"""What each effect buys on the ledger: errors of a source with all its effects, and with each one left out.

    python benchmarks/ablation.py

Where an effect shares in a fit (AdaptDL's seconds per byte), the fit is made again without it. Where it is calibrated
itself (DDP's hooks and copies), the others stay as calibrated. ``no overlap`` sends everything in one message after
backward, fitted again likewise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import osfmodel as osf
from osfmodel.check import quantile
from osfmodel.effects import NO_EFFECTS
from osfmodel.ledger import Verdict, counted, pollux, pytorch_ddp
from osfmodel.measurement import Measurement
from osfmodel.measurements import load_measurements
from osfmodel.plan import contiguous_plan
from osfmodel.workload import Workload


class Variant(NamedTuple):
    """A source (or one file of it), what is left out, and its median, p90, worst and median signed error."""

    source: str
    without: str
    median: float
    p90: float
    worst: float
    bias: float


def summary(source: str, without: str, errors: Sequence[float]) -> Variant:
    sizes = [abs(error) for error in errors]
    numbers = [quantile(sizes, part) for part in (0.5, 0.9, 1.0)] + [quantile(errors, 0.5)]
    return Variant(source, without, *(float("nan") if number is None else number for number in numbers))


def errors_of(verdict: Verdict, runs: Sequence[Measurement], file: str = "") -> list[float]:
    return [
        row.error
        for row, run in zip(verdict.rows, runs, strict=True)
        if row.error is not None and not row.fitted and (not file or run.condition("file") == file)
    ]


def adaptdl() -> Iterator[Variant]:
    for source, shape in (
        ("pollux-imagenet", pollux.rebuilt(osf.load_workload("resnet50-v100"))),
        ("pollux-cifar10", pollux.as_built(counted.resnet18_cifar10())),
        ("pollux-deepspeech2", pollux.rebuilt(counted.deepspeech2())),
        ("pollux-ncf", pollux.as_built(counted.ncf())),
    ):
        runs = load_measurements(source)
        for without, buckets, effects in (
            ("nothing", shape, pollux.EFFECTS),
            ("compute_slowdown", shape, NO_EFFECTS),
            ("overlap", in_one(shape), NO_EFFECTS),
        ):
            verdict = pollux.judge(runs, buckets, effects)
            for file in ("placements", "scalability"):
                yield summary(f"{source}, {file}", without, errors_of(verdict, runs, file))


def in_one(buckets: Workload) -> Workload:
    return pollux.by_bucket(buckets, contiguous_plan(buckets, [len(buckets.gradients)]))


def ddp() -> Iterator[Variant]:
    runs = load_measurements("pytorch-ddp")
    copies = ("copy_in", "copy_out")
    for without in ((), ("compute_slowdown",), ("hook_time",), copies, ("compute_slowdown", "hook_time", *copies)):
        verdict = pytorch_ddp.judge(runs, off=without)
        yield summary("pytorch-ddp", " + ".join(without) or "nothing", errors_of(verdict, runs))


def main() -> None:
    print(f"{'source':<34}{'without':<50}{'median':>8}{'p90':>8}{'worst':>8}{'bias':>8}")
    for one in (*adaptdl(), *ddp()):
        numbers = f"{one.median:8.2%}{one.p90:8.2%}{one.worst:8.2%}{one.bias:+8.2%}"
        print(f"{one.source:<34}{one.without:<50}{numbers}")


if __name__ == "__main__":
    main()
