"""Regret of layouts: measured time of what we name first, over the best measured of the same model and GPUs, minus 1.

    OSFMODEL_DATA=FOLDER python benchmarks/layouts.py [--tp 8] [--plot docs/ledger/layouts.png] > docs/ledger/layouts.md
    OSFMODEL_DATA=FOLDER python benchmarks/layouts.py --recipes

The second prints NeMo's recipes, as far as words can say them, beside the best layout that the search finds.

The rows are those of nanotron's sweep (docs/sources.md): groups of a model and a number of GPUs with 10 rows or more,
TP of 8 at most. A choice is made among the layouts that were measured. Rows whose DP x micro-batch x accumulation is
not the global batch of 256 are left out: their rates are not of that layout. A row is disturbed if it takes more than
five times as long as the same layout with the next smaller or larger micro-batch; results are with and without these.
The rule of thumb: the least TP x PP that runs, then the largest micro-batch.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, groupby, pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple
from unittest.mock import patch

import osfmodel as osf
from osfmodel.counting.groups import stages_of
from osfmodel.counting.stacks import STACKS, Stack
from osfmodel.counting.words import at_samples, model_of, parse_words
from osfmodel.engine.bands import quantile
from osfmodel.planning.scaling.curve import ScalePoint, parts_of_steps
from osfmodel.planning.scaling.layouts import TIE, LayoutSearch
from osfmodel.planning.scaling.spaces import Layout, parse_space
from osfmodel.solve import verdicts
from osfmodel.solve.verdicts import RETRY_SLOWDOWN

SAMPLES, TOKENS, LEAST, DISTURBED = 256, 4096, 10, 5.0
MODELS = {"1B": "llama3.2-1b", "8B": "llama3-8b"}
CLUSTER = "nccl:h100x8,400Gbps,efa"
FILE = "sharded/nanotron-ultrascale/benchmarks_1b_8b.csv"


@dataclass(frozen=True)
class Measured:
    """A measured layout: seconds of its step, and bytes that were reserved."""

    model: str
    gpus: int
    layout: Layout
    plan: str
    seconds: float
    reserved: float

    @property
    def group(self) -> tuple[str, int]:
        """The model and the number of GPUs."""
        return self.model, self.gpus


def read(path: Path, tensor: int) -> list[Measured]:
    """The rows whose batch is that of the sweep, with ``tensor`` GPUs in a tensor group at most."""
    found = []
    with path.open(encoding="utf-8-sig") as file:
        for row in csv.DictReader(file):
            tp, pp, dp, batch, accumulated = (
                int(row[name])
                for name in (
                    "tensor_parallel",
                    "pipeline_parallel",
                    "data_parallel",
                    "microbatch_samples",
                    "grad_accumulation",
                )
            )
            if dp * batch * accumulated == SAMPLES and tp <= tensor and row["model"] in MODELS:
                layout = Layout(osf.Parallelism(tp, pp), batch, accumulated, "none")
                plan = "zero-1" if row["zero_stage"] == "1" else "ddp"
                seconds = SAMPLES * TOKENS / float(row["tokens_per_s"])
                reserved = float(row["gpu_memory_gb"]) * 2**30
                found.append(Measured(row["model"], int(row["gpus"]), layout, plan, seconds, reserved))
    return sorted(found, key=lambda one: one.group)


def undisturbed(rows: Sequence[Measured]) -> list[Measured]:
    """The rows without those that take DISTURBED times as long as a neighbour in micro-batches."""
    alike: dict[object, list[Measured]] = {}
    for row in sorted(rows, key=lambda one: one.layout.batch):
        alike.setdefault((row.group, row.layout.groups, row.plan), []).append(row)
    slow = set()
    for own in alike.values():
        for one, other in pairwise(own):
            for this, that in ((one, other), (other, one)):
                if this.seconds > DISTURBED * that.seconds:
                    slow.add(this)
    return [row for row in rows if row not in slow]


class Priced(NamedTuple):
    """The turn of a row by its verdict, those that fit first, seconds to expect and predicted, and their band."""

    turn: int
    expected: float
    seconds: float = 0.0
    band: tuple[float, float] | None = None


def priced(rows: Sequence[Measured]) -> Iterator[tuple[Measured, Priced]]:
    """Rows as they are predicted from words."""
    cluster = osf.load_cluster(CLUSTER)
    for (model, gpus), own in groupby(rows, lambda one: one.group):
        words = f"{MODELS[model]}:h100,seq{TOKENS},batch1,bf16,stack=nanotron"
        each = {one: LayoutSearch(words, cluster, gpus, osf.ScaleOptions((one,))) for one in ("zero-1", "ddp")}
        for row in own:
            point = each[row.plan].price(row.layout)
            if point is None:
                yield row, Priced(3, 0.0)
                continue
            band = None if point.band is None else (point.band.low, point.band.high)
            turn = ("yes", "tight", "no").index(point.fits or "yes")
            yield row, Priced(turn, point.best.expected_time, point.time, band)


def read_on(rows: Sequence[Measured], times: Mapping[Measured, Priced]) -> tuple[Stack, float]:
    """The stack with host times read from rows of one model, and what memory near its limit costs there.

    Time of a block of the stage that has most: the least of rows with TP of 4 or more and a micro-batch of 1 on one
    node; in pipelines over nodes the least of each model, TP and PP is longer, by the median of that for each GPU of a
    tensor group.
    """
    blocks, over = [], dict[tuple[str, int, int], list[float]]()
    for row in rows:
        groups, batch, accumulated, _ = row.layout
        each = row.seconds / (accumulated + groups.pipeline - 1) / most_blocks(row.model, groups.pipeline)
        if groups.pipeline == 1 and groups.tensor >= INSIDE // 2 and batch == 1 and row.gpus == INSIDE:
            blocks.append(each)
        if groups.pipeline > 1 and groups.tensor > 1 and row.gpus > INSIDE:
            over.setdefault((row.model, groups.tensor, groups.pipeline), []).append(each)
    host = min(blocks)
    longer = median((min(own) - host) / tensor for (_, tensor, _), own in over.items())
    slower = [row.seconds / times[row].seconds for row in rows if row.reserved > NEAR * 2**30 and times[row].seconds]
    return STACKS["nanotron"]._replace(host=host, handover=longer), median(slower) if slower else RETRY_SLOWDOWN


@cache
def most_blocks(model: str, stages: int) -> int:
    """Blocks of the stage that has most, as nanotron divides a model."""
    shards, _ = stages_of(model_of(parse_words(f"{MODELS[model]}:h100")), osf.Parallelism(1, stages), by_cost=True)
    return max(len(one.model.blocks) for one in shards)


def crossed(rows: Sequence[Measured], times: Mapping[Measured, Priced]) -> Iterator[tuple[Measured, Priced]]:
    """The rows of each model with what was read on those of the other one."""
    for model in MODELS:
        stack, slower = read_on([row for row in rows if row.model != model], times)
        with patch.dict(STACKS, nanotron=stack), patch.object(verdicts, "RETRY_SLOWDOWN", slower):  # type: ignore[arg-type]
            at_samples.cache_clear()
            yield from priced([row for row in rows if row.model == model])
        at_samples.cache_clear()


def regrets(rows: Sequence[Measured], key: Callable[[Measured], object], most: int = 1) -> dict[tuple[str, int], float]:
    """The regret of the best of the first ``most`` by ``key``, for each group; of the median layout for 0."""
    found = {}
    for group, members in groupby(rows, lambda one: one.group):
        own = list(members)
        if len(own) >= LEAST:
            first = sorted(own, key=key)[:most]  # type: ignore[arg-type]
            taken = min(one.seconds for one in first) if most else median(one.seconds for one in own)
            found[group] = taken / min(one.seconds for one in own) - 1
    return found


Choices = Mapping[str, Mapping[tuple[str, int], float]]


def choices(rows: Sequence[Measured], times: Mapping[Measured, Priced]) -> Choices:
    """Regrets of our choices and of others, by group."""
    return {
        "predicted fastest": regrets(rows, times.__getitem__),
        "best of the first three": regrets(rows, times.__getitem__, 3),
        "rule of thumb": regrets(rows, lambda one: (one.layout.groups.gpus, -one.layout.batch)),
        "median layout": regrets(rows, times.__getitem__, 0),
    }


def table(named: Mapping[str, Choices]) -> Iterator[str]:
    """Regrets over groups."""
    yield "| rows | choice | groups | median | p90 | worst |"
    yield "|---|---|---|---|---|---|"
    for name, by in named.items():
        for choice, found in by.items():
            yield f"| {name} | {choice} | {len(found)} | {' | '.join(parts_of(found))} |"


def parts_of(found: Mapping[tuple[str, int], float]) -> tuple[str, ...]:
    """Median, 90 % quantile and largest of the regrets of groups."""
    return tuple(f"{quantile(sorted(found.values()), part):.1%}" for part in (0.5, 0.9, 1.0))


def by_group(by: Choices) -> Iterator[str]:
    """Regrets of each group in which a choice loses much."""
    yield f"| model | GPUs | {' | '.join(by)} |"
    yield "|---|---|" + "---|" * len(by)
    for model, gpus in by["rule of thumb"]:
        chosen = [found[model, gpus] for name, found in by.items() if name != "median layout"]
        if max(chosen) <= MUCH:
            continue
        yield f"| {model} | {gpus} | {' | '.join(f'{found[model, gpus]:.1%}' for found in by.values())} |"


def kind_of(row: Measured) -> str:
    """The parallelism of a row, as it is judged."""
    groups, ways = row.layout.groups, row.layout.groups.document
    named = "TP x PP" if len(ways) > 1 else "TP" if groups.tensor > 1 else "PP" if groups.pipeline > 1 else "DP"
    where = f"{'2 to 16' if row.gpus <= MANY * INSIDE else '32 to 64'} nodes" if groups.pipeline > 1 else "nodes"
    return "one node" if row.gpus <= INSIDE else f"{named} over {where}"


def errors(rows: Sequence[Measured], times: Mapping[Measured, Priced]) -> Iterator[str]:
    """Errors of predicted step times by kind, under a heading."""
    yield "| rows | number | median error | p90 | bias | in the band |"
    yield "|---|---|---|---|---|---|"
    for kind in sorted({kind_of(row) for row in rows}):
        own = [row for row in rows if kind_of(row) == kind and times[row].seconds]
        off = [times[row].seconds / row.seconds - 1 for row in own]
        sizes = sorted(map(abs, off))
        banded = [(row.seconds, band) for row in own if (band := times[row].band)]
        held = sum(low <= seconds <= high for seconds, (low, high) in banded)
        part = f"{held / len(banded):.0%} of {len(banded)}" if banded else "no band"
        cells = f"{median(sizes):.1%} | {quantile(sizes, 0.9):.1%} | {median(off):+.1%}"
        yield f"| {kind} | {len(own)} | {cells} | {part} |"


def by_pairs(rows: Sequence[Measured], times: Mapping[Measured, Priced]) -> Iterator[str]:
    """Errors of the ratio of two layouts that surely fit and differ in one thing, by nodes."""
    yield "| nodes | pairs | median error of the ratio | p90 | faster one is known |"
    yield "|---|---|---|---|---|"
    found: dict[str, list[tuple[float, bool]]] = {}
    for _, members in groupby(rows, lambda one: one.group):
        own = [row for row in members if times[row].seconds and times[row].turn == 0]
        for one, other in combinations(own, 2):
            if sum(a != b for a, b in zip(sides(one), sides(other), strict=True)) == 1:
                measured = math.log(one.seconds / other.seconds)
                predicted = math.log(times[one].seconds / times[other].seconds)
                nodes = one.gpus // INSIDE
                where = "1" if nodes <= 1 else "2" if nodes == 2 else "4 to 16" if nodes <= MANY else "32 to 64"
                found.setdefault(where, []).append((abs(measured - predicted), (measured > 0) == (predicted > 0)))
    for where in sorted(found, key=lambda name: int(name.split()[0])):
        sizes = sorted(size for size, _ in found[where])
        cells = (f"{math.expm1(quantile(sizes, part)):.0%}" for part in (0.5, 0.9))
        known = sum(right for _, right in found[where]) / len(sizes)
        yield f"| {where} | {len(sizes)} | {' | '.join(cells)} | {known:.0%} |"


def sides(row: Measured) -> tuple[object, ...]:
    """The things in which layouts differ."""
    return row.layout.groups.tensor, row.layout.groups.pipeline, row.layout.batch, row.plan


def near_the_limit(rows: Sequence[Measured], times: Mapping[Measured, Priced]) -> str:
    """A sentence on the runs that reserved more than NEAR."""
    slower = sorted(
        row.seconds / times[row].seconds for row in rows if row.reserved > NEAR * 2**30 and times[row].seconds
    )
    said = f"{median(slower):.1f} times as long as predicted in the median ({slower[0]:.1f} to {slower[-1]:.1f})"
    return f"The {len(slower)} runs that reserved more than {NEAR} of 80 GiB took {said}."


def slow_pipelines(rows: Sequence[Measured], times: Mapping[Measured, Priced]) -> Iterator[str]:
    """Pipelines that take SLOW times as long as predicted, and what each micro-batch takes in them, by model."""
    yield f"| nodes | pipelines | slow | {' | '.join(f'{model}: seconds of each micro-batch' for model in MODELS)} |"
    yield f"|---|---|---|{'---|' * len(MODELS)}"
    found: dict[int, list[Measured]] = {}
    for row in rows:
        if row.layout.groups.pipeline > 1 and times[row].seconds:
            found.setdefault(max(1, row.gpus // INSIDE), []).append(row)
    for nodes, own in sorted(found.items()):
        slow = [row for row in own if row.seconds > SLOW * times[row].seconds]
        cells = []
        for model in MODELS:
            each = sorted(
                row.seconds / (row.layout.accumulated + (row.layout.groups.pipeline - 1) / 2)
                for row in slow
                if row.model == model
            )
            cells.append(f"{median(each):.2f} ({each[0]:.2f} to {each[-1]:.2f})" if each else "")
        yield f"| {nodes} | {len(own)} | {len(slow)} | {' | '.join(cells)} |"


def plot(by: Choices, path: str) -> None:
    """Draw the regrets of each group. Needs matplotlib."""
    import matplotlib  # noqa: PLC0415 - needed for this alone

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    groups = list(by["rule of thumb"])
    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    for (choice, found), mark, colour in zip(
        by.items(), "oDsx", ("#1f77b4", "#17becf", "#d62728", "#8c8c8c"), strict=True
    ):
        axes.plot(range(len(groups)), [1 + found[group] for group in groups], mark, color=colour, label=choice)
    axes.set_yscale("log", base=2)
    axes.set_yticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    axes.set_xticks(range(len(groups)), [f"{model}\n{gpus}" for model, gpus in groups])
    axes.set_xlabel("model, GPUs")
    axes.set_ylabel("time of the choice over the best measured")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


# ------------------------------------------------------------------------------------------------- recipes of NeMo

RECIPES = "sharded/nemo-megatron-bridge/llama3_2025_qwen3_30b.csv"
NEMO = {
    "LLAMA3_8B": "llama3-8b",
    "LLAMA3_70B": "llama3-70b",
    "LLAMA3.1_405B": "llama3-405b",
    "Qwen3_30B_a3B": "qwen3-30b-a3b",
}
PRECISIONS = {"": "fp8", "FP8": "fp8", "FP8-CS": "fp8", "FP8-MX": "mxfp8", "MXFP8": "mxfp8"}
"""Of recipes: their models, and precisions, in words; in the summary that names none it is FP8-CS."""
WAYS = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")


class Recipe(NamedTuple):
    """A published recipe: workload and cluster in words, GPUs, samples of a step, its layout and plan."""

    words: str
    cluster: str
    gpus: int
    samples: int
    layout: Layout
    plan: str

    @property
    def said(self) -> str:
        """Its layout, for people."""
        return described(self.layout, self.plan)


def described(layout: Layout, plan: str) -> str:
    """A layout with its plan in a few words."""
    how = "" if layout.checkpointing == "none" else f", ac={layout.checkpointing}"
    return f"{layout.groups.words.replace('--', '')} {plan}, batch {layout.batch}{how}".strip()


def recipes(path: Path) -> dict[Recipe, int]:
    """The recipes that words can say, each with the rows that have it; a row with values in brackets is two."""
    found: dict[Recipe, int] = {}
    with path.open(encoding="utf-8-sig") as file:
        for row in csv.DictReader(file):
            other = {name: cell.partition(" (")[2].rstrip(")") for name, cell in row.items()}
            first = {name: cell.partition(" (")[0] for name, cell in row.items()}
            turns = [first, {**first, **{name: cell for name, cell in other.items() if cell}}]
            for each in turns if row["model"] in NEMO and other["tokens_per_gpu_per_s"] else turns[:1]:
                if row["model"] in NEMO:
                    one = recipe_of(each)
                    found[one] = found.get(one, 0) + 1
    return found


def recipe_of(row: Mapping[str, str]) -> Recipe:
    """The recipe of a row without brackets."""
    gpu, gpus, batch = row["system"].removeprefix("DGX-").lower(), int(row["gpus"]), int(row["microbatch_samples"])
    node, samples = 72 if gpu.startswith("gb") else 8, int(row["global_batch_samples"])
    chunks = int(row["virtual_pipeline"] or 1)
    groups = osf.Parallelism(*(int(float(row[name])) for name in WAYS), chunks=chunks)
    words = f"{NEMO[row['model']]}:{gpu},seq{row['seq_len_tokens']},batch1,{PRECISIONS[row['precision']]},stack=te"
    words += ",overlap=tp"  # tp_comm_overlap wherever TP > 1 (Megatron-Bridge 0.2.0, scripts/performance/configs)
    layout = Layout(groups, batch, samples // (batch * groups.replicas(gpus)), "none")
    plan = "fsdp2" if int(row["fsdp"] or 0) else "zero-1"
    return Recipe(words, f"nccl:{gpu}x{node},400Gbps", gpus, samples, layout, plan)


def recipe_table(found: Mapping[Recipe, int]) -> Iterator[str]:
    """Each recipe beside the best layout that the search finds for its model, GPUs, batch and precision."""
    yield "| workload | GPUs | batch | rows | recipe | predicted | best found | predicted | recipe's band | reason |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for one, rows in found.items():
        search = LayoutSearch(one.words, osf.load_cluster(one.cluster), one.gpus, osf.ScaleOptions(PLANS))
        every = search.candidates(parse_space("any"), one.samples)
        whole = one.layout._replace(groups=replace(one.layout.groups, chunks=1))
        if whole not in every:
            raise SystemExit(f"{one.said} is not among the layouts that are searched for {one.words}")
        (best, point), *_ = search.best(every, 1)
        search.options = osf.ScaleOptions((one.plan,))
        own = search.price(one.layout)
        assert own is not None
        assert own.band is not None
        named, _, rest = one.words.partition(",")
        words = f"{named} {rest.split(',')[2]}"
        band = f"{own.band.low:.4g} to {own.band.high:.4g} s"
        cells = [words, one.gpus, one.samples, rows, one.said, f"{own.time:.4g} s ({own.fits})"]
        cells += [described(best, point.best.name), f"{point.time:.4g} s", band, reason_for(own, point)]
        yield f"| {' | '.join(map(str, cells))} |"


def reason_for(own: ScalePoint, best: ScalePoint) -> str:
    """Whether the best found is faster than a recipe beyond its band, and what makes the difference."""
    if own.fits == "no":
        return f"said not to fit, and it ran: {own.best.peak.bytes / 1e9:.0f} GB"
    if best.time > own.time * (1 + TIE):
        return f"slower by {best.time / own.time - 1:.0%}, as the recipe fits tightly alone"
    beyond = "beyond the band" if best.time < own.band.low else "within the band"
    what, saved = max(((what, mine - its) for what, its, mine in parts_of_steps(best, own)), key=lambda one: one[1])
    return f"{beyond}: {saved / own.time:.0%} {what}" if best.time < own.time * (1 - TIE) else "as fast"


PLANS = ("zero-1", "fsdp2", "hsdp", "ddp")


INSIDE, NEAR, MANY, SLOW, MUCH = 8, 71, 16, 3, 0.1
"""GPUs of a node, GiB from which runs were close to the limit of memory, nodes beyond which there are many, times as
long as predicted that a pipeline takes from which it is slow, and a regret that is worth a line."""
PAGE = """# Choosing a layout

In {good} of {every} groups the layout that is predicted fastest loses at most 10 %, in the worst {worst}.
`OSFMODEL_DATA=FOLDER python benchmarks/layouts.py` prints this: for each model and number of GPUs that nanotron's
authors measured, the time of that layout over the best measured, minus 1. The rule of thumb is the least TP x PP that
runs, then the largest micro-batch. Among undisturbed rows only choices that differ are listed.

{table}

![time of each choice over the best measured, by group](layouts.png)

Disturbed is a row that takes more than five times as long as the same layout with the next micro-batch. Prices, host
times of `stack=nanotron` and the pace of EFA were read from these runs: choices are among rows that were in view.

## Learned on the other model

Choices are made again with times of the host and the cost of tight memory from the rows of the other model alone (the
pace of EFA and efficiencies of computation stay). Median, p90 and worst that differ then: {other}.

## Groups in which a choice loses more than 10 %

{groups}

## Step times of these rows

{errors}

With what was read on the other model alone the others stay as they are, and:

{crossed}

{near}
Predictions charge time for tight memory by these. {disturbed} of all rows are disturbed.

## Slow pipelines

Pipelines that take more than {times} times as long as predicted. A micro-batch, with half of those that fill the
pipeline, takes about as long in all of them, whatever the model, its part on a GPU, the tensor group, or the samples:
neither computation nor bytes explain it, and of two alike rows often one is not slow. Nothing that is published tells
which, so bands do not hold these.

{slow}

## Pairs of layouts

Undisturbed ones that differ in TP, PP, micro-batch or stage of ZeRO alone. Intervals of gains of `osf scale FILE` are
from these.

{pairs}
"""


def main() -> None:
    """Print the page."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("file", nargs="?", type=Path, default=Path(os.environ.get("OSFMODEL_DATA", ".")) / FILE)
    asked.add_argument("--tp", type=int, default=8)
    asked.add_argument("--plot")
    asked.add_argument("--recipes", action="store_true")
    given = asked.parse_args()
    if given.recipes:
        for line in recipe_table(recipes(Path(os.environ.get("OSFMODEL_DATA", ".")) / RECIPES)):
            print(line, flush=True)
        return
    every = read(given.file, given.tp)
    times = dict(priced(every))
    calm = undisturbed(every)
    first = choices(every, times)
    other_rows = {choice: found for choice, found in choices(calm, times).items() if found != first[choice]}
    named = {f"all {len(every)}": first, f"{len(calm)} undisturbed": other_rows}
    if given.plot:
        plot(first, given.plot)
    others = dict(crossed(every, times))
    crosswise = list(choices(every, others).items())[:2]  # the others are of no prediction
    other = "; ".join(
        f"{choice}: {', '.join(parts_of(found))}" for choice, found in crosswise if found != first[choice]
    )
    own = list(errors(every, times))
    crossed_rows = [row for row in errors(every, others) if row not in own]
    found = [table(named), by_group(first), own, own[:2] + crossed_rows, by_pairs(calm, times)]
    found.append(slow_pipelines(every, times))
    lines = dict(zip(("table", "groups", "errors", "crossed", "pairs", "slow"), map("\n".join, found), strict=True))
    fastest = first["predicted fastest"].values()
    said = {
        "good": sum(one <= MUCH for one in fastest),
        "every": len(fastest),
        "worst": f"{max(fastest):.0%}",
        "other": other or "none",
        "disturbed": len(every) - len(calm),
        "near": near_the_limit(every, times),
        "times": SLOW,
    }
    print(PAGE.format(**lines, **said), end="")


if __name__ == "__main__":
    main()
