"""The value of each effect and each assumption on the ledger, as in the tables of docs/ledger.md and its pages.

    python benchmarks/ablation.py

First table: every source as it is judged, and with one effect left out or, where it is off, with it on. Second: other
profiles, buckets, constants and terms. Errors are over the runs that nothing was fitted on. Where a variant shares in
a fit (AdaptDL's seconds per byte, the lines of ddl-benchmarks), the fit is made again; where an effect is calibrated
itself (DDP's hooks and copies), the others stay as calibrated. *Without overlap* sends everything after backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import osfmodel as osf
from osfmodel.cost.pricing import Pricing
from osfmodel.engine.bands import quantile
from osfmodel.entities.effects import CITED_SLOWDOWN, NO_EFFECTS, Effects
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.entities.measurement import Measurement
from osfmodel.entities.plan import in_one
from osfmodel.entities.workload import Workload
from osfmodel.ledger import Verdict
from osfmodel.ledger.sources import (
    bcaffe,
    counted,
    ddl_benchmarks,
    emulated_ddp,
    low_bandwidth,
    papers,
    pollux,
    pytorch_ddp,
)

SLOWDOWN = Effects(compute_slowdown=CITED_SLOWDOWN)
JUDGED = "as judged"
HEAD = "| source | variant | rows | median | p90 | worst | bias |\n|---|---|---|---|---|---|---|"
FILES = ("placements", "scalability")


class Variant(NamedTuple):
    """A source (or part of it), what is different, and predicted / measured - 1 of the rows that count."""

    source: str
    what: str
    errors: Sequence[float]

    def __str__(self) -> str:
        sizes = [abs(error) for error in self.errors]
        median, p90, worst = (quantile(sizes, part) or 0.0 for part in (0.5, 0.9, 1.0))
        bias = quantile(self.errors, 0.5) or 0.0
        figures = f"{median:.1%} | {p90:.1%} | {worst:.1%} | {bias:+.1%}"
        return f"| {self.source} | {self.what} | {len(sizes)} | {figures} |"


@contextmanager
def changed(module: object, **values: object) -> Iterator[None]:
    """``module`` with other constants or functions for a while."""
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def errors_of(verdict: Verdict, words: str = "") -> list[float]:
    """Errors of the rows that count and whose label has ``words``."""
    return [row.error for row in verdict.rows if row.error is not None and row.counts and words in row.label]


def by_file(source: str, what: str, verdict: Verdict, runs: Sequence[Measurement]) -> Iterator[Variant]:
    for file in FILES:
        rows = tuple(row for row, run in zip(verdict.rows, runs, strict=True) if run.condition("file") == file)
        yield Variant(f"{source}, {file}", what, errors_of(verdict._replace(rows=rows)))


# ------------------------------------------------------------------------------------------------- first table: effects


def adaptdl() -> Iterator[Variant]:
    for source, shape in (
        ("pollux-imagenet", pollux.rebuilt(osf.load_workload("resnet50-v100"))),
        ("pollux-cifar10", pollux.as_built(counted.resnet18_cifar10())),
        ("pollux-deepspeech2", pollux.rebuilt(counted.deepspeech2())),
        ("pollux-ncf", pollux.as_built(counted.ncf())),
    ):
        runs = load_measurements(source)
        for what, buckets, effects in (
            (JUDGED, shape, pollux.EFFECTS),
            ("without `compute_slowdown`", shape, NO_EFFECTS),
            ("without overlap", pollux.by_bucket(shape, in_one(shape)), NO_EFFECTS),
        ):
            yield from by_file(source, what, pollux.judge(runs, buckets, effects), runs)


def ddp() -> Iterator[Variant]:
    runs = load_measurements("pytorch-ddp")
    copies = ("copy_in", "copy_out")
    for off in ((), ("compute_slowdown",), ("hook_time",), copies, ("compute_slowdown", "hook_time", *copies)):
        what = f"without {' + '.join(f'`{name}`' for name in off)}" if off else JUDGED
        yield Variant("pytorch-ddp", what, errors_of(pytorch_ddp.judge(runs, off=off)))


def emulated(source: str) -> Iterator[Variant]:
    """The value of modelling several collectives in flight, and copies out of buckets."""
    runs = load_measurements(source)
    for what, change in (
        (JUDGED, lambda pricing: pricing),
        ("one collective at a time", lambda pricing: replace(pricing, in_flight=1)),
        ("start-ups read off the tables", lambda pricing: replace(pricing, startups={})),
        ("without `copy_out`", lambda pricing: replace(pricing, effects=NO_EFFECTS)),
        (f"with `compute_slowdown` = {CITED_SLOWDOWN:g}", lambda pricing: replace(pricing, effects=SLOWDOWN)),
    ):
        yield Variant(source, what, errors_of(emulated_ddp.judge(runs, change)))


def emulated_horovod() -> Iterator[Variant]:
    """The value of modelling Horovod's loop."""
    runs = load_measurements("emulated-horovod")

    def without(name: str) -> Callable[[Pricing], Pricing]:
        return lambda pricing: replace(pricing, effects=replace(pricing.effects, **{name: 0}))

    for what, change in (
        (JUDGED, lambda pricing: pricing),
        ("without `negotiation`", without("negotiation")),
        ("without `fusion_copy`", without("fusion_copy")),
        ("collectives outside the loop, as over NCCL", lambda pricing: replace(pricing, blocking=False)),
        (
            f"with `compute_slowdown` = {CITED_SLOWDOWN:g}",
            lambda pricing: replace(pricing, effects=replace(pricing.effects, compute_slowdown=CITED_SLOWDOWN)),
        ),
    ):
        yield Variant("emulated-horovod", what, errors_of(emulated_ddp.judge(runs, change)))


def emulated_sparse() -> Iterator[Variant]:
    """The value of modelling the computation of sparse buckets."""
    runs = load_measurements("emulated-sparse")
    runs = [run for run in runs if "sparse" in run.plan]

    def without(*names: str) -> Callable[[Pricing], Pricing]:
        return lambda pricing: replace(pricing, effects=replace(pricing.effects, **dict.fromkeys(names, 0)))

    choosing, adding = ("select", "select_sent", "select_time"), ("spread", "spread_received", "spread_time")
    for what, change in (
        (JUDGED, lambda pricing: pricing),
        ("without choosing entries", without(*choosing)),
        ("without making means", without(*adding)),
        ("without mirrors", without("mirror")),
        ("without any of these", without(*choosing, *adding, "mirror")),
    ):
        yield Variant("emulated-sparse, sparse plans", what, errors_of(emulated_ddp.judge(runs, change)))

    def slowed(pricing: Pricing) -> Pricing:
        return replace(pricing, effects=replace(pricing.effects, compute_slowdown=CITED_SLOWDOWN))

    for source in ("emulated-sparse", "emulated-memory"):
        runs = load_measurements(source)
        yield Variant(source, JUDGED, errors_of(emulated_ddp.judge(runs)))
        yield Variant(
            source, f"with `compute_slowdown` = {CITED_SLOWDOWN:g}", errors_of(emulated_ddp.judge(runs, slowed))
        )


def slowed() -> Iterator[Variant]:
    """The sources where computation is not slowed, with the cited value on."""
    for effects, what in ((NO_EFFECTS, JUDGED), (SLOWDOWN, f"with `compute_slowdown` = {CITED_SLOWDOWN:g}")):
        for source, judge in (
            ("bcaffe", bcaffe.judge),
            ("ddl-benchmarks", ddl_benchmarks.judge),
            ("horovod-lowbandwidth", low_bandwidth.judge),
        ):
            yield Variant(source, what, errors_of(judge(load_measurements(source), effects)))
        rows = papers.speed_ups(load_measurements("papers"), effects=effects)
        yield Variant("papers", what, errors_of(Verdict(tuple(rows), "")))


def effects() -> list[Variant]:
    rest = sorted(slowed(), key=lambda one: one.source)  # as judged and with it, beside each other
    return [
        *adaptdl(),
        *ddp(),
        *emulated("emulated-ddp"),
        *emulated("emulated-runtime"),
        *emulated_horovod(),
        *emulated_sparse(),
        *rest,
    ]


# -------------------------------------------------------------------------------------------- second table: assumptions


def profiles_and_buckets() -> Iterator[Variant]:
    runs = load_measurements("pollux-imagenet")
    resnet50 = osf.load_workload("resnet50-v100")
    shapes: list[tuple[str, Workload]] = [
        (f"profile `{name}`", pollux.rebuilt(osf.load_workload(name)))
        for name in ("resnet50-v100-dgxs", "resnet50-reconstructed", "resnet50-h100", "resnet50-pipedream")
    ]
    for what, shape in (*shapes, ("buckets as built (PyTorch 1.5)", pollux.as_built(resnet50))):
        yield from by_file("pollux-imagenet", what, pollux.judge(runs, shape), runs)
    runs = load_measurements("pollux-cifar10")
    rebuilt = pollux.rebuilt(counted.resnet18_cifar10())
    yield from by_file("pollux-cifar10", "buckets rebuilt (PyTorch 1.6)", pollux.judge(runs, rebuilt), runs)
    runs = load_measurements("pollux-deepspeech2")
    with changed(counted, SECONDS_PER_BYTE=0.0):
        read_once = pollux.rebuilt(counted.deepspeech2.__wrapped__())
    yield from by_file("pollux-deepspeech2", "recurrent weights not read again", pollux.judge(runs, read_once), runs)


def constants() -> Iterator[Variant]:
    """Constants that no source states, and a network slower than modelled."""
    runs = load_measurements("horovod-lowbandwidth")
    for step in ("0us", "200us"):
        with changed(low_bandwidth, STEP=step):
            yield Variant("horovod-lowbandwidth", f"a step of {step}", errors_of(low_bandwidth.judge(runs)))
    runs = load_measurements("ddl-benchmarks")
    for bandwidth in (448e9, 900e9, math.inf):
        what = f"update at {bandwidth / 1e9:g} GB/s" if bandwidth < math.inf else "no update in the compute time"
        with changed(ddl_benchmarks, MEMORY_BANDWIDTH=bandwidth):
            yield Variant("ddl-benchmarks", what, errors_of(ddl_benchmarks.judge(runs)))
    with changed(ddl_benchmarks, update_launch=lambda *_: 0.0):
        yield Variant("ddl-benchmarks", "no update time per tensor", errors_of(ddl_benchmarks.judge(runs)))
    copies = Effects(fusion_copy=2 / ddl_benchmarks.MEMORY_BANDWIDTH)
    yield Variant("ddl-benchmarks", "copies into the merged buffer", errors_of(ddl_benchmarks.judge(runs, copies)))
    runs = load_measurements("pytorch-ddp")
    for factor in (2, 4):
        with changed(pytorch_ddp, cost_of=lambda cluster, workers, by=factor: osf.cost_of(cluster, workers).slower(by)):
            what = f"all-reduce {factor} times as long"
            yield Variant("pytorch-ddp", what, errors_of(pytorch_ddp.judge(runs)))


def parts() -> Iterator[Variant]:
    """The kinds of rows that the pages speak of."""
    verdict = ddl_benchmarks.judge(load_measurements("ddl-benchmarks"))
    for words in ("resnet50", "bert"):
        yield Variant(f"ddl-benchmarks, {words}", JUDGED, errors_of(verdict, words))
    runs = [run for run in load_measurements("papers") if run.workers == 32]
    plotted = papers.speed_ups(runs, lambda _: papers.PLOTTED_32, lambda _: papers.PLOTTED_32)
    for what, rows in ((JUDGED, papers.speed_ups(runs)), ("constants of the plot script", plotted)):
        for other in ("wfbp", "mg-wfbp"):
            words = f"asc-wfbp over {other}"
            yield Variant(f"papers, {words}", what, errors_of(Verdict(tuple(rows), ""), words))
    over_single = papers.speed_ups(load_measurements("papers"), effects=SLOWDOWN)
    errors = errors_of(Verdict(tuple(over_single), ""), "over single")
    yield Variant("papers, mg-wfbp over single", f"with `compute_slowdown` = {CITED_SLOWDOWN:g}", errors)


def assumptions() -> list[Variant]:
    return [*profiles_and_buckets(), *constants(), *parts()]


def bandwidths() -> Iterator[str]:
    """ns per byte that ResNet-50, BERT-Base and BERT-Large find, each by itself, over 10 GbE."""
    runs = load_measurements("ddl-benchmarks")
    found = {"10 GbE": ddl_benchmarks.calibrate(runs).lines}
    with changed(ddl_benchmarks, update_launch=lambda *_: 0.0):
        found["10 GbE, no update time per tensor"] = ddl_benchmarks.calibrate(runs).lines
    for name, lines in found.items():
        cells = []
        for workers in (8, 16, 32):
            rows = [lines[model, "ddl-benchmarks-10gbe", workers] for model in ("resnet50-v100", *ddl_benchmarks.ADAMW)]
            cells.append(", ".join(f"{row.pieces[0][1] * 1e9:.3f}" for row in rows))
        yield f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    print("\n".join([HEAD, *map(str, effects()), "", HEAD, *map(str, assumptions()), ""]))
    print("| ns per byte | 8 GPUs | 16 GPUs | 32 GPUs |\n|---|---|---|---|")
    print("\n".join(bandwidths()))


if __name__ == "__main__":
    main()
