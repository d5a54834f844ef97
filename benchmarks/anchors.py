"""Compare ways in which one measured step corrects the predictions of other settings. Prints a table:

    python benchmarks/anchors.py
    OSFMODEL_DATA=FOLDER python benchmarks/anchors.py --scale 8,64     other numbers of GPUs, by several anchors
    OSFMODEL_DATA=FOLDER python benchmarks/anchors.py --spread         how repeats differ, by the number of GPUs

Each run of a model, GPU, software and type is the anchor of all others of them, which differ in batch, sequence, groups
or recomputation. With --scale, runs of one model, batch and strategy on these numbers of GPUs are the anchors of its
runs on all others, from words, with bands. Efficiencies are learned without the source. Ways: no anchor; the whole
computation scaled, as by ``osf scale --anchor``; and the parts corrected, each by its doubt and its share of the step,
so that shapes are kept.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
from scipy.optimize import brentq

import osfmodel as osf
from osfmodel.counting import roofline
from osfmodel.counting.groups import Parallelism
from osfmodel.counting.roofline import Waits
from osfmodel.counting.stacks import STACKS, Learned, Traffic
from osfmodel.engine.bands import quantile
from osfmodel.planning.scaling.anchors import EDGE
from osfmodel.planning.scaling.replicas import replica_workload

sys.path.insert(0, str(Path(__file__).parent.parent / "profiles"))
import make_efficiency as learning
from make_efficiency import Row

DOUBTS = (0.1, 0.3, 0.3, 0.3, 0.5)
"""Of the logarithms of clocks, attention's rate, passes over memory, the host's time, and collectives in a replica."""
SMALL, WIDEST = 1e-3, 2.0
"""A change that shows the share of a part, and the largest logarithm of a correction."""


class Pair(NamedTuple):
    """ln(predicted / measured) of a run: without an anchor, with all scaled, and with parts corrected."""

    source: str
    misses: tuple[float, float, float]


def step(row: Row, taught: Learned, slower: Sequence[float] = (0.0,) * len(DOUBTS)) -> float:
    """Seconds of a step; ``slower``: logarithms of factors on the times of the parts in the order of DOUBTS."""
    clock, attention, passes, host, collectives = map(math.exp, slower)
    changed = taught._replace(
        clocks={gpu: {name: one / clock for name, one in own.items()} for gpu, own in taught.clocks.items()},
        attention={name: {gpu: one / attention for gpu, one in own.items()} for name, own in taught.attention.items()},
        passes={name: Traffic(*(one * passes for one in own)) for name, own in taught.passes.items()},
    )
    stages = tuple(
        tuple(
            part._replace(
                beside={name: Waits(*(one * collectives for one in own)) for name, own in part.beside.items()}
            )
            for part in stage
        )
        for stage in row.stages
    )
    hosts = {name: stack._replace(host=stack.host * host) for name, stack in STACKS.items()}
    with patch.object(roofline, "STACKS", hosts):
        return row._replace(stages=stages).computing(changed) + row.rest


def in_parts(anchor: Row, taught: Learned) -> tuple[float, ...]:
    """The logarithms with which the anchor's step is met: the likeliest, if those of the parts have DOUBTS."""
    before = step(anchor, taught)
    shares = [
        (step(anchor, taught, [SMALL * (part == one) for one in range(len(DOUBTS))]) / before - 1) / SMALL
        for part in range(len(DOUBTS))
    ]
    weights = [doubt**2 * share for doubt, share in zip(DOUBTS, shares, strict=True)]
    each = [weight / math.hypot(*weights) for weight in weights]

    def excess(size: float) -> float:
        return math.log(step(anchor, taught, [size * one for one in each]) / anchor.seconds)

    low, high = excess(-WIDEST), excess(WIDEST)
    size = (-WIDEST if low > 0 else WIDEST) if low * high > 0 else float(brentq(excess, -WIDEST, WIDEST, xtol=SMALL))
    return tuple(size * one for one in each)


def series() -> Iterator[list[Row]]:
    """Runs that share source, system, model, GPU, stack and type, where there are several."""
    found: dict[Hashable, list[Row]] = {}
    systems = [dict(one.run.conditions).get("system", "") for one in learning.learning_runs()]
    for place, row in enumerate(learning.rows()):
        model = row.stages[0][0].model.name.replace("3.1", "3")
        system = systems[place] if place < len(systems) else ""
        setting = replace(row.setting, batch=1, checkpointing="none")
        found.setdefault((row.source, system, model, setting), []).append(row)
    return (own for own in found.values() if len(own) > 1)


def pairs() -> Iterator[Pair]:
    """All pairs of an anchor and another run whose setting or layout differs."""
    without: dict[str, Learned] = {}
    for own in series():
        source = own[0].source
        if source not in without:
            without[source] = learning.learn(lambda row, source=source: row.source != source)  # type: ignore[misc]
        taught = without[source]
        before = [step(row, taught) for row in own]
        for anchor in own:
            factor = (anchor.seconds - anchor.rest) / anchor.computing(taught)
            slower = in_parts(anchor, taught)
            for row, plain in zip(own, before, strict=True):
                if row.stages == anchor.stages and row.setting == anchor.setting:
                    continue
                told = (plain, (plain - row.rest) * factor + row.rest, step(row, taught, slower))
                yield Pair(source, tuple(math.log(one / row.seconds) for one in told))  # type: ignore[arg-type]


def line(name: str, found: Sequence[Pair], of: Callable[[Sequence[float]], float]) -> str:
    """A line of the table: ``of`` of the sizes of errors in each way."""
    sizes = ([abs(math.expm1(one.misses[way])) for one in found] for way in range(3))
    return f"{name:22s} {len(found):6d} " + " ".join(f"{of(one):8.1%}" for one in sizes)


NEAR = 0.15
"""Error up to which a run beyond its anchors counts as met."""


class Ladder(NamedTuple):
    """Runs of one model, batch and strategy: GPUs -> micro-batches, and seconds of a step."""

    source: str
    words: str
    cluster: str
    plan: str
    tensor: int
    runs: dict[int, tuple[int, float]]


LLAMA = {
    "2.7": (2560, 32, 32, 6784, 50304),
    "6.7": (4096, 32, 32, 11008, 50304),
    "13": (5120, 40, 40, 13824, 50304),
    "InternLM-7B": (4096, 32, 32, 11008, 103168),
}
"""Width, layers, heads, feed-forward and vocabulary."""
NANOTRON = {"1B": "llama3.2-1b", "8B": "llama3-8b"}
DISTURBED = 5.0
"""Multiple of the step with the neighbouring micro-batch from which a run counts as disturbed (a rule fixed before)."""


def ladders(folder: Path) -> list[Ladder]:
    """Runs of Modalities, InternEvo and nanotron (no pipelines) with three numbers of GPUs or more."""
    found: dict[tuple[str, str, str, str, int], dict[int, tuple[int, float]]] = {}

    def rows(path: str) -> list[dict[str, str]]:
        with (folder / "sharded" / path).open(encoding="utf-8-sig", newline="") as file:
            return list(csv.DictReader(file))

    def add(key: tuple[str, str, str, str, int], gpus: str, accumulated: str, seconds: float) -> None:
        found.setdefault(key, {})[int(gpus)] = (int(accumulated), seconds)

    for row in rows("modalities/scaling_leonardo.csv"):
        size = row["params_billion"]
        if size in LLAMA and (size, row["gpus"]) != ("13", "8"):  # which is short of memory
            words = f"{_config(size)}:a100-64gb,seq4096,batch{row['microbatch_samples']},bf16"
            plan = "hsdp" if row["sharding"] == "HYBRID_SHARD" else "fsdp2"
            time = float(row["global_batch_samples"]) / float(row["throughput_samples_per_s"])
            add(("Leonardo", words, "nccl:a100x4,100Gbps", plan, 1), row["gpus"], row["grad_accumulation"], time)
    for row in rows("internevo/train_performance_7b.csv"):
        if (row["pack_sample_into_one"], row["zero1_group"]) == ("False", "-1"):
            batch, tensor = int(row["microbatch_samples"]), int(row["tensor_parallel"])
            words = f"{_config('InternLM-7B')}:a100,seq2048,batch{batch},bf16"
            time = batch * int(row["micro_num"]) * 2048 / float(row["tokens_per_gpu_per_s"]) / tensor
            key = ("InternEvo", words, "nccl:a100x8,400Gbps/node,roce", "zero-1", tensor)
            add(key, row["gpus"], row["micro_num"], time)
    rates: dict[tuple[str, ...], float] = {}
    runs = [row for row in rows("nanotron-ultrascale/benchmarks_1b_8b.csv") if row["pipeline_parallel"] == "1"]
    layout = ("model", "gpus", "tensor_parallel", "zero_stage")
    for row in runs:
        rates[(*(row[one] for one in layout), row["microbatch_samples"])] = float(row["tokens_per_s"])
    for row in runs:
        batch, tensor, ranks = (int(row[one]) for one in ("microbatch_samples", "tensor_parallel", "data_parallel"))
        same = tuple(row[one] for one in layout)
        near = [rates.get((*same, str(other)), 0.0) for other in (batch * 2, batch // 2)]
        if tensor > 8 or batch * ranks * int(row["grad_accumulation"]) != 256:
            continue
        if max(near) < DISTURBED * float(row["tokens_per_s"]):
            words = f"{NANOTRON[row['model']]}:h100,seq4096,batch{batch},bf16,stack=nanotron"
            plan = "zero-1" if row["zero_stage"] == "1" else "ddp"
            key = (f"nanotron {row['model']}, {plan}", words, "nccl:h100x8,400Gbps,efa", plan, tensor)
            add(key, row["gpus"], row["grad_accumulation"], 256 * 4096 / float(row["tokens_per_s"]))
    return [Ladder(*key, runs) for key, runs in found.items() if len(runs) > 2]


def _config(name: str) -> Path:
    """A file with the dimensions of a model."""
    width, layers, heads, inner, vocabulary = LLAMA[name]
    path = Path(tempfile.gettempdir()) / f"osf-anchors-{name}.json"
    path.write_text(
        json.dumps(
            {
                "model_type": "llama",
                "hidden_size": width,
                "num_hidden_layers": layers,
                "num_attention_heads": heads,
                "num_key_value_heads": heads,
                "intermediate_size": inner,
                "vocab_size": vocabulary,
                "max_position_embeddings": 8192,
                "tie_word_embeddings": False,
            }
        )
    )
    return path


class Held(NamedTuple):
    """A run beside its anchors: predicted / measured - 1, whether the band holds it, and half of the band's width."""

    source: str
    gpus: int
    error: float
    inside: bool
    width: float


def at_scale(one: Ladder, counts: Sequence[int]) -> Iterator[Held]:
    """The runs on other numbers of GPUs, by anchors on ``counts``; none where one of these was not measured."""
    if not set(counts) <= set(one.runs):
        return
    cluster, groups = osf.load_cluster(one.cluster), Parallelism(tensor=one.tensor)
    workload = osf.load_workload(one.words) if one.tensor == 1 else replica_workload(one.words, cluster, groups)
    anchors = tuple(osf.Anchor(count, one.runs[count][1], accumulate=one.runs[count][0]) for count in counts)
    for gpus, (accumulated, seconds) in sorted(one.runs.items()):
        if gpus not in counts:
            what_if = osf.WhatIf(accumulate=accumulated)
            options = osf.ScaleOptions((one.plan,), what_if=what_if, anchor=anchors, groups=groups, sized=False)
            (point,) = osf.scale(workload, cluster, [gpus], options).points
            inside = point.band is not None and point.band.low <= seconds <= point.band.high
            width = math.inf if point.band is None else point.band.half_width
            yield Held(one.source, gpus, point.time / seconds - 1, inside, width)


def show_scale(counts: Sequence[int]) -> None:
    """Print errors and coverage by source, those of more GPUs than the anchors, and how bands grow with GPUs."""
    found = [run for one in ladders(Path(os.environ["OSFMODEL_DATA"])) for run in at_scale(one, counts)]
    print(f"{'source':22s} {'runs':>5s} {'median':>8s} {'p90':>8s} {'worst':>8s} {'in band':>8s}")
    for name in dict.fromkeys(run.source for run in found):
        own = [run for run in found if run.source == name]
        sizes = sorted(abs(run.error) for run in own)
        covered = sum(run.inside for run in own) / len(own)
        figures = (median(sizes), quantile(sizes, 0.9) or 0.0, sizes[-1], covered)
        print(f"{name:22s} {len(own):5d} " + " ".join(f"{one:8.1%}" for one in figures))
    print(
        f"\n{'beyond the anchors':22s} {'runs':>5s} {'in 15 %':>8s}  worst, and half of the median band's width by GPUs"
    )
    for name in dict.fromkeys(run.source for run in found):
        own = [run for run in found if run.source == name and run.gpus > max(counts)]
        each = {gpus: [run for run in own if run.gpus == gpus] for gpus in sorted({run.gpus for run in own})}
        words = (
            f"{gpus}: {max((run.error for run in of), key=abs):+.0%} {median(run.width for run in of):.0%}"
            for gpus, of in each.items()
        )
        near = sum(abs(run.error) <= NEAR for run in own) / max(len(own), 1)
        print(f"{name:22s} {len(own):5d} {near:8.1%}  " + ", ".join(words))


def spreads(folder: Path) -> Iterator[tuple[str, dict[int, list[float]]]]:
    """By source, what nine in ten repeats of a step are longer by at most: GPUs -> a fraction for each setting.

    Of nanotron's machine, whose steps were not repeated, half of the range of single messages of 256 MiB, and the share
    of runs that count as disturbed, beside runs of the same layout with half or twice the micro-batch.
    """

    def rows(path: str) -> list[dict[str, str]]:
        with (folder / path).open(encoding="utf-8-sig", newline="") as file:
            return list(csv.DictReader(file))

    def by_gpus(pairs: Iterable[tuple[str, float]]) -> dict[int, list[float]]:
        found: dict[int, list[float]] = {}
        for gpus, value in pairs:
            found.setdefault(int(gpus), []).append(value)
        return dict(sorted(found.items()))

    for name, said in (("v100_iteration_times", "V100, InfiniBand"), ("gh200_slingshot", "GH200, Slingshot")):
        steps = [row for row in rows(f"scaling/pytorch-ddp-readme/ddp_{name}.csv") if row["n_gpus"] != "1"]
        each = by_gpus((row["n_gpus"], float(row["p95_s"]) / float(row["p50_s"]) - 1) for row in steps)
        yield f"steps, {said}", each
    steps = [
        row for row in rows("scaling/ddl-benchmarks/results_2020-05-29.csv") if row["std"] and row["arch"] == "A2A"
    ]
    for network in dict.fromkeys(row["network"] for row in steps):
        own = (row for row in steps if row["network"] == network)
        each = by_gpus(
            (row["n_gpus"], EDGE * float(row["std"]) / float(row["throughput_samples_per_s"])) for row in own
        )
        yield f"steps, {network}", each
    calls = rows("sharded/nanotron-ultrascale/comm_bandwidth_256MB.csv")
    ranges = ((row["gpus"], float(row["busbw_GBps_high"]) / float(row["busbw_GBps_low"])) for row in calls)
    yield "single messages, EFA", by_gpus((gpus, math.sqrt(ratio) - 1) for gpus, ratio in ranges)
    layout = ("model", "gpus", "tensor_parallel", "pipeline_parallel", "zero_stage", "data_parallel")
    runs = {
        (*(row[one] for one in layout), int(row["microbatch_samples"])): float(row["tokens_per_s"])
        for row in rows("sharded/nanotron-ultrascale/benchmarks_1b_8b.csv")
    }
    pairs = []
    for (*same, batch), rate in runs.items():
        near = [runs[(*same, other)] for other in (2 * batch, batch // 2) if (*same, other) in runs]
        if near:
            pairs.append((same[1], float(max(near) >= DISTURBED * rate)))
    yield "runs disturbed, EFA", {gpus: [sum(each) / len(each)] for gpus, each in by_gpus(pairs).items()}


def show_spread() -> None:
    """Print the median and the worst spread by source and number of GPUs, and the trend of all with its error."""
    print(f"{'of':26s} {'for each doubling of GPUs':>26s}   median and worst by GPUs")
    for name, found in spreads(Path(os.environ["OSFMODEL_DATA"])):
        at = [(math.log2(gpus), value) for gpus, values in found.items() for value in values]
        trend, error = "", ""
        if len(at) > 3:
            fit, covariance = np.polyfit(*zip(*at, strict=True), 1, cov=True)
            trend, error = f"{fit[0]:+.1%}", f"± {EDGE * math.sqrt(covariance[0, 0]):.1%}"
        each = ", ".join(f"{gpus}: {median(values):.1%} {max(values):.1%}" for gpus, values in found.items())
        print(f"{name:26s} {trend:>15s} {error:>10s}   {each}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", metavar="N,N", help="numbers of GPUs of the anchors")
    parser.add_argument("--spread", action="store_true", help="how repeats of steps and messages differ")
    options = parser.parse_args()
    counts = options.scale
    if options.spread:
        show_spread()
    elif counts:
        show_scale([int(count) for count in counts.split(",")])
    else:
        show_settings()


def show_settings() -> None:
    """Print how one anchor corrects other settings."""
    found = list(pairs())
    print(f"{'source':22s} {'pairs':>6s} {'none':>8s} {'whole':>8s} {'parts':>8s}")
    by_source = {name: [one for one in found if one.source == name] for name in dict.fromkeys(p.source for p in found)}
    for name, own in by_source.items():
        print(line(name, own, median))
        print(line("  90th percentile", own, lambda sizes: quantile(sorted(sizes), 0.9) or 0.0))
    for way, said in enumerate(("none", "whole", "parts")):
        each = [median(abs(math.expm1(one.misses[way])) for one in own) for own in by_source.values()]
        print(f"median of medians, {said}: {median(each):.1%}")


if __name__ == "__main__":
    main()
