"""Predict published runs from words, held out, and from words and one step. Prints docs/ledger/from-words.md:

    OSFMODEL_DATA=FOLDER python benchmarks/from_words.py [--plot docs/ledger/from-words.png] > docs/ledger/from-words.md

``--before PAGE`` adds a column of an earlier page's medians (``git show REVISION:docs/ledger/from-words.md > PAGE``).

Without an anchor a run is predicted by what was learned without its source. With one, the computation of a
series is scaled so that the prediction on its fewest GPUs takes as long as was measured; that run is not judged.
FOLDER holds the sources' own figures, with whose columns utilisation is compared; left out without it.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple, TypeVar

from osfmodel.counting.stacks import ANY, learned
from osfmodel.engine.band_values import Distances
from osfmodel.engine.bands import COUNTED, NOTHING, PART, REPLICAS, distances_of, quantile
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.entities.workload import Workload
from osfmodel.ledger.as_used import judge_one, used_of
from osfmodel.ledger.recipe import label_of
from osfmodel.show.checks.scatter import Cloud, Scatter, plot_scatter

sys.path.insert(0, str(Path(__file__).parent.parent / "profiles"))
import make_efficiency as learning
import tensor_groups
import unseen
from in_words import (
    RunInWords,
    anchored,
    anchors,
    asked_for,
    runs_in_words,
    step_time,
    workload_in_words,
)

COLUMNS = {
    "mosaicml-2023": (
        ("sharded/mosaicml-llm-foundry/mosaicgpt_training_2023-04.csv", "mfu_percent", 100),
        ("sharded/mosaicml-llm-foundry/mosaicgpt_training_torch1.12_2023-01.csv", "mfu_percent", 100),
    ),
    "modalities-leonardo": (("sharded/modalities/scaling_leonardo.csv", "mfu", 1),),
    "fms-fsdp": (("sharded/fms-fsdp/throughput.csv", "mfu", 1),),
}
"""Files of a source in the order of its runs, with their column of utilisation and its unit."""


class Judged(NamedTuple):
    """A run with predicted / measured - 1, and whether it lies inside the band; None without one."""

    one: RunInWords
    error: float
    inside: bool | None


class Alone(NamedTuple):
    """A run from words alone: its source, stack, seconds, predicted / measured - 1, and the doubt."""

    source: str
    stack: str
    seconds: float
    error: float
    doubt: float

    @property
    def inside(self) -> bool:
        """Whether the band holds what was measured."""
        return 1 / (1 + self.doubt) <= 1 / (1 + self.error) <= 1 + self.doubt


@cache
def held_out() -> dict[str, list[tuple[learning.Row, float]]]:
    """The runs by source, with ln(predicted / measured), learned without it."""
    return learning.held_out(learning.source_of)


def without_anchor(level: float = PART) -> list[Alone]:
    """Runs on the fewest GPUs, from words alone; all that was learned, and the doubts, learned without their source.

    ``level``: part of the other sources' runs that a doubt holds
    """
    by_source = held_out()
    found = []
    for name, rows in by_source.items():
        taught = learned()._replace(doubts=learning.doubts_without(name, level))
        for row, miss in rows:
            doubt = learning.doubted(row, taught)
            found.append(Alone(row.source, row.setting.stack, row.seconds, math.expm1(miss), doubt))
    return found


def coverage(rows: Iterable[Alone]) -> float:
    """Part of a source's runs inside their bands, mean over sources."""
    return mean(mean(row.inside for row in own) for own in grouped(rows, lambda row: row.source).values())


def plot(rows: Mapping[str, Sequence[Alone]], found: Mapping[float, float], path: str) -> None:
    """Draw predicted over measured times by source, and the coverage that was found over the one that is stated."""
    clouds = [Cloud(name, tuple((r.seconds, r.seconds * (1 + r.error)) for r in own)) for name, own in rows.items()]
    plot_scatter(Scatter(tuple(sorted(clouds, key=lambda cloud: -len(cloud.points)))), path, found)


def pairs(rows: Sequence[Alone], measured: Sequence[learning.Row]) -> tuple[int, int]:
    """Pairs of runs that differ in stack or type alone and by more than 5 %, and those of which the faster is known."""
    alike = grouped(zip(measured, rows, strict=True), lambda one: _work(one[0]))
    found = [
        (math.log(one.seconds / other.seconds), math.log((1 + mine.error) / (1 + theirs.error)))
        for own in alike.values()
        for (one, mine), (other, theirs) in combinations(own, 2)
        if one.setting != other.setting
    ]
    told = [(apart > 0) == (apart + miss > 0) for apart, miss in found if abs(apart) > math.log(1.05)]
    return sum(told), len(told)


def _work(row: learning.Row) -> Hashable:
    """A key that runs share which differ in stack or type of computation alone."""
    models = tuple(part.model.name for stage in row.stages for part in stage)
    tokens = row.stages[0][0].model.tokens
    return row.source, models, tokens, row.turns, replace(row.setting, stack="eager", dtype="bfloat16")


def with_anchor() -> Iterator[Judged]:
    """All runs of series with several, but the anchors."""
    first = anchors(runs_in_words())
    factors = {name: anchored(one, workload_in_words(one)) for name, one in first.items()}
    for one in runs_in_words():
        if one.series not in factors or one is first[one.series]:
            continue
        workload = workload_in_words(one).scaled(factors[one.series])
        error = step_time(one, workload) / one.run.iteration_time - 1
        yield Judged(one, error, _inside(one, workload))


def _inside(one: RunInWords, workload: Workload) -> bool | None:
    found = asked_for(one, replace(workload, doubt=0.0), one.stated.micro_batches)  # the anchor took it away
    judged = judge_one(one.source, one.source, one.run, *found)
    return None if judged is None else used_of([(label_of(one.run), judged)])[0].inside


def bands(folder: Path) -> Iterator[str]:
    """The lines of the table of bands by kind of set-up, each without the source that it is held against."""
    rows = learning.judged(learning.layouts_of(folder))
    yield "| kind | sources | runs | half width, median | inside, mean of sources |"
    yield "|---|---|---|---|---|"
    known = distances_of([one for one in rows if one.kind == REPLICAS])
    known.append(Distances(COUNTED, "", NOTHING, NOTHING, 0, ()))
    used = grouped(used_of([(one.kind, one) for one in rows], known), lambda one: one.judged.kind)
    for kind, own in sorted(used.items()):
        sources = grouped(own, lambda one: one.judged.source)
        half = median(one.band.half_width for one in own if one.band is not None)
        held = mean(mean(bool(one.inside) for one in each) for each in sources.values())
        yield f"| {kind} | {len(sources)} | {len(own)} | {half:.0%} | {held:.0%} |"


def utilisation(source: str, folder: Path) -> list[float]:
    """Utilisation by our formula over that of the source, for each of its runs."""
    said: list[float] = []
    for path, column, unit in COLUMNS[source]:
        with open(folder / path, encoding="utf-8", newline="") as file:
            said += [float(row[column]) / unit for row in csv.DictReader(file)]
    theirs = dict(zip(load_measurements(source), said, strict=True))
    rows = [one for one in runs_in_words() if one.source == source]
    return [_ideal(one) / one.run.iteration_time / theirs[one.run] for one in rows]


def _ideal(one: RunInWords) -> float:
    return (workload_in_words(one).ideal_time or 0.0) * one.stated.micro_batches


def figures(rows: Sequence[Judged | Alone]) -> str:
    """Runs, median and 90th percentile of the |error|, bias, and coverage, as cells of a table."""
    sizes, banded = [abs(row.error) for row in rows], [row.inside for row in rows if row.inside is not None]
    covered = f"{sum(banded) / len(banded):.0%} of {len(banded)}" if banded else "no band"
    bias = median(row.error for row in rows)
    return f"{len(rows)} | {median(sizes):.1%} | {quantile(sizes, 0.9) or 0:.1%} | {bias:+.1%} | {covered}"


def table(rows: Mapping[str, Sequence[Judged | Alone]], before: Mapping[str, str] | None = None) -> Iterator[str]:
    """The lines of a table by source, and of all; ``before``: medians of an earlier page."""
    named = {**rows, "all": [row for own in rows.values() for row in own]}
    more = "" if before is None else " median before |"
    yield f"| source | runs | median error | p90 | bias | inside the band |{more}"
    yield "|---|---|---|---|---|---|" + "---|" * bool(more)
    for name, own in named.items():
        yield f"| {name} | {figures(own)} |" + ("" if before is None else f" {before.get(name, '-')} |")


def medians_of(page: str) -> dict[str, str]:
    """Medians of the first table of an earlier page, by source."""
    first = page.partition("| source |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")] for line in first.splitlines()[2:]]
    return {row[1]: row[3] for row in rows}


Each = TypeVar("Each")


def grouped(rows: Iterable[Each], name: Callable[[Each], str]) -> dict[str, list[Each]]:
    """The rows by a name, in the order in which names come first."""
    found: dict[str, list[Each]] = {}
    for row in rows:
        found.setdefault(name(row), []).append(row)
    return found


PAGE = """# From words

`python benchmarks/from_words.py` prints this: published runs whose model, GPU and set-up can be said in words, such as
`llama2-7b:h100,seq4096,batch2,bf16,compile`.

## Words alone

Runs on the fewest GPUs of their series (model, sequence, GPU), and those of `profiles/published`: NeMo, SimuMax,
nanotron on one node, torchao, and torchtitan, whose H100 have 2.4 TB/s and 500 W (`h100-96gb`), which it says.
Clocks, passes over memory and the doubt, which is the band, are learned without the source
(`profiles/make_efficiency.py`), and never from torchao. Their form and starting values were chosen with all of these
runs in view, and the time of nanotron's host was read from its rows. SimuMax's models have 12 and 4 layers.

{alone}

Half width of the band, median: {half:.0%}. All of them learned from, it is {doubts}; {elsewhere:.0%} where no run
taught the GPU or the stack there. Coverage by source, mean: {covered:.0%}. Median of the sources' medians:
{medians:.1%}. Of {total} pairs of runs of a source that differ in stack or type alone, and by more than 5 %, the faster
is known in {right}.

![predicted over measured times by source, and coverage found over coverage stated](from-words.png)

| a band that is to hold | {stated} |
|---|{lines}
| holds of a source left out, mean | {covers} |

Missed are the goals of 8 % for SimuMax, of a half width of 14 %, and of 85 to 97 % inside.

* NeMo's rows of Qwen3-30B-A3B on the same GPUs and settings differ by up to 1.8 times between containers of one year.
  Those of a single sample in a micro-batch take up to 2.5 times as long as predicted: 9 ms a block or more. A floor of
  that size would also hold runs that newer containers finish sooner, and SimuMax's DeepSeek-V2, so there is none.
* `mosaicml-2023` of January ran torch 1.12, and took longer than in April. `mosaicml-h100` is the only source with
  FlashAttention 1 on H100: the rate that is assumed without it is too low.
* SimuMax is learned without its own measured kernels too, from which clocks of A100 and B200 start otherwise.
* torchao's runs are slower than predicted, most on B200, where no other run had compiled blocks. Its maintainers limit
  H100 to 500 W and B200 to 750 W elsewhere (pytorch/ao#3566, pytorch/helion#347); of these runs nothing is said.

The same runs, those on more GPUs, InternEvo's with tensor groups, and one in {each_of} of nanotron's layouts on several
nodes, as `osf scale` says them, with bands that are learned without their source:

{bands}

## With an anchor

The computation of a series is scaled so that the prediction on its fewest GPUs takes as long as was measured. That run
is not judged. `fms-fsdp` and `mosaicml-h100` have no series of several counts. How networks of many nodes slow down was
learned on InternEvo's machine and Leonardo together.

{anchored}

Up to {few} GPUs the median is {few_median:.1%} and the 90th percentile {few_p90:.1%}. Large errors are of
communication: the network is slower than its data sheet on 128 GPUs and more of
[modalities-leonardo](modalities-leonardo.md) and on 512 and more of [internevo](internevo.md).

## torchtitan

Its runs of Llama 3.1 from words alone, which are among those learned from: the five largest errors of time,
and of memory, which is what PyTorch's allocator reserved (`python benchmarks/unseen.py` prints all).

{unseen}

## Tensor groups

InternEvo's runs of a 7B model with ZeRO-1 over all ranks on 8 to 1,024 GPUs, from words alone, with `--tp 1` and
`--tp 2` (`python benchmarks/tensor_groups.py` prints each).

{grouped}

## Utilisation

Utilisation (MFU) by `Workload.ideal_time`, over the source's own column.

{utilised}

Modalities takes 312 TFLOPS for Leonardo's A100, which has 358. MosaicML's parameters have positions, the difference in
small models with long sequences. The other formulas are not published.
"""


def ratios(folder: Path) -> Iterator[str]:
    """The lines of the table of utilisation."""
    yield "| source | runs | least | median | largest | within 3 % |"
    yield "|---|---|---|---|---|---|"
    for source in COLUMNS:
        rows = utilisation(source, folder)
        near = sum(abs(ratio - 1) <= NEAR for ratio in rows) / len(rows)
        yield f"| {source} | {len(rows)} | {min(rows):.3f} | {median(rows):.3f} | {max(rows):.3f} | {near:.0%} |"


FEW, NEAR = 64, 0.03
"""GPUs of a machine that is not large, a small difference of formulas."""


LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Parts that bands are to hold."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot")
    parser.add_argument("--before", type=Path)
    options = parser.parse_args()
    alone, judged = without_anchor(), list(with_anchor())
    found = {level: coverage(without_anchor(level)) for level in LEVELS}
    by_source = grouped(alone, lambda row: row.source)
    right, total = pairs(alone, learning.rows())
    few = [abs(row.error) for row in judged if row.one.run.workers <= FEW]
    folder = os.environ["OSFMODEL_DATA"]
    page = PAGE.format(
        alone="\n".join(table(by_source, options.before and medians_of(options.before.read_text(encoding="utf-8")))),
        half=median(row.doubt for row in alone),
        doubts=", ".join(f"{max(own.values()):.0%} ({name})" for name, own in learned().doubts.items() if name != ANY),
        elsewhere=learned().doubts[ANY][ANY],
        each_of=learning.EACH_OF,
        bands="\n".join(bands(Path(folder))),
        covered=coverage(alone),
        stated=" | ".join(f"{level:.0%}" for level in found),
        lines="---|" * len(found),
        covers=" | ".join(f"{part:.0%}" for part in found.values()),
        medians=median(median(abs(row.error) for row in own) for own in by_source.values()),
        right=right,
        total=total,
        anchored="\n".join(table(grouped(judged, lambda row: row.one.source))),
        few=FEW,
        few_median=median(few),
        few_p90=quantile(few, 0.9) or 0.0,
        unseen="\n".join(unseen.table(5)),
        grouped="\n".join(line for line in tensor_groups.table() if line.startswith(("| GPU", "|-", "| all"))),
        utilised="\n".join(ratios(Path(folder))),
    )
    if options.plot:
        plot(by_source, found, options.plot)
    print(page, end="")


if __name__ == "__main__":
    main()
