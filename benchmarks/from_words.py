"""Predict published runs from words, held out, and from words and one step. Prints docs/ledger/from-words.md:

    OSFMODEL_DATA=FOLDER python benchmarks/from_words.py > docs/ledger/from-words.md

Without an anchor a run is predicted with efficiencies that its source had no part in. With one, the computation of a
series is scaled so that the prediction on its fewest GPUs takes as long as was measured; that run is not judged.
FOLDER holds the sources' own figures, with whose columns utilisation is compared; left out without it.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from osfmodel.engine.bands import quantile
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.entities.workload import Workload
from osfmodel.ledger.as_used import judge_one, used_of
from osfmodel.ledger.recipe import label_of

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


def without_anchor() -> list[Judged]:
    """Runs on the fewest GPUs, from words alone; efficiencies and doubts learned without their source."""
    by_source = learning.held_out(lambda one: one.source)
    found = []
    for name, rows in by_source.items():
        doubt = learning.doubt_of(row for source, own in by_source.items() if source != name for row in own)
        found += [Judged(one, error, 1 / (1 + doubt) <= 1 / (1 + error) <= 1 + doubt) for one, error in rows]
    return found


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


def figures(rows: Sequence[Judged]) -> str:
    """Runs, median and 90th percentile of the |error|, bias, and coverage, as cells of a table."""
    sizes, banded = [abs(row.error) for row in rows], [row.inside for row in rows if row.inside is not None]
    covered = f"{sum(banded) / len(banded):.0%} of {len(banded)}" if banded else "no band"
    bias = median(row.error for row in rows)
    return f"{len(rows)} | {median(sizes):.1%} | {quantile(sizes, 0.9) or 0:.1%} | {bias:+.1%} | {covered}"


def table(rows: Sequence[Judged]) -> Iterator[str]:
    """The lines of a table by source, and of all."""
    yield "| source | runs | median error | p90 | bias | inside the band |"
    yield "|---|---|---|---|---|---|"
    for name in dict.fromkeys(row.one.source for row in rows):
        yield f"| {name} | {figures([row for row in rows if row.one.source == name])} |"
    yield f"| all | {figures(rows)} |"


PAGE = """# From words

`python benchmarks/from_words.py` prints this: published runs whose model, GPU and set-up can be said in words, such as
`llama2-7b:h100,seq4096,batch2,bf16,compile`.

## Words alone

Runs on the fewest GPUs of their series (model, sequence, GPU), {gpus}. Efficiencies and the doubt, which is the band,
are learned without the source (`profiles/make_efficiency.py`). The form of the roofline and the weights of the fit were
chosen with all of these runs in view, so that a source left out had a part in that choice, though not in the figures.

{alone}

The bars were a median of 12 %, a 90th percentile of 25 %, and bands that hold 90 %. Of the runs above, those on 8 GPUs,
which are one node but for `modalities-leonardo`, with 4 on a node:

{node}

* `mosaicml-2023` of January ran torch 1.12: it took {january:.0%} longer than predicted (median). Runs of April are
  {april:+.0%} off.
* `mosaicml-h100` has the code and the authors of `mosaicml-2023`, on other machines and with later software.
* Norms, embeddings and the optimizer move at all of the data sheet's bandwidth, the largest value that the fit allows:
  one number stands for all of them. One number is for matrices, and one for attention.
* H100 reaches a smaller part of its data sheet than A100. Without `mosaicml-h100`, eight runs of `fms-fsdp` on two
  kinds of GPU show by how much.
* Sequences of {long_tokens:,} tokens and more are {long:.0%} off (median): kernels of attention differ between sources,
  and words do not name them.

## With an anchor

The computation of a series is scaled so that the prediction on its fewest GPUs takes as long as was measured. That run
is not judged. All else is as used. `fms-fsdp` and `mosaicml-h100` have no series of several counts.

{anchored}

The bars were a median of 5 %, a 90th percentile of 12 %, and 85 % inside the band for each source.

Up to {few} GPUs the median is {few_median:.1%} and the 90th percentile {few_p90:.1%}. Large errors are of communication
on many GPUs: steps of one small micro-batch take longer than the data sheet of the network says, on 128 GPUs and more
of [modalities-leonardo](modalities-leonardo.md) and on 512 and more of [internevo](internevo.md).

## Runs from which nothing was learned

torchtitan's published runs of Llama 3.1, from words alone (`python benchmarks/unseen.py`): another code base, float8,
tensor, pipeline and context parallelism. That attention and the head are not in float8, the wider doubt of float8, and
the memory of a pipeline's stages came after a look at these rows; no figure was fitted to them. Their H100 have memory
of 2.4 instead of 3.35 TB/s and 500 instead of 700 W: an excess of rate is expected there. Memory is what PyTorch's
allocator reserved, ours is of live bytes. Asynchronous tensor parallelism overlaps what we take not to overlap.

{unseen}

## Tensor groups

InternEvo's runs of a 7B model with ZeRO-1 over all ranks, with one GPU of a replica and with two that share matrices
and tokens (`--tp 2`), from words alone (`python benchmarks/tensor_groups.py`). Efficiencies are those that come with
osfmodel: those of its runs on 8 GPUs with one GPU of a replica are in them, those of two are not.

{grouped}

On 512 GPUs and more the rate falls as said above.

## Utilisation

Utilisation (MFU) by `Workload.ideal_time`, over the source's own column.

{utilised}

MosaicML counts 6 P + 12 layers x width x tokens operations for each token. Positions are among its parameters P: they
are the difference in small models with long sequences. The other formulas are not published beside the figures.
"""


def ratios(folder: Path) -> Iterator[str]:
    """The lines of the table of utilisation."""
    yield "| source | runs | least | median | largest | within 3 % |"
    yield "|---|---|---|---|---|---|"
    for source in COLUMNS:
        rows = utilisation(source, folder)
        near = sum(abs(ratio - 1) <= NEAR for ratio in rows) / len(rows)
        yield f"| {source} | {len(rows)} | {min(rows):.3f} | {median(rows):.3f} | {max(rows):.3f} | {near:.0%} |"


NODE, FEW, LONG, NEAR = 8, 64, 16384, 0.03
"""GPUs of a node and of a machine that is not large, tokens of a long sequence, a small difference of formulas."""


def main() -> None:
    alone, judged = without_anchor(), list(with_anchor())
    mosaic = [row for row in alone if row.one.source == "mosaicml-2023"]
    dated = {
        system: median(row.error for row in mosaic if row.one.run.condition("system") == system)
        for system in ("2023-01", "2023-04")
    }
    few = [abs(row.error) for row in judged if row.one.run.workers <= FEW]
    folder = os.environ.get("OSFMODEL_DATA", "")
    page = PAGE.format(
        gpus=f"{min(row.one.run.workers for row in alone)} to {max(row.one.run.workers for row in alone)}",
        alone="\n".join(table(alone)),
        node="\n".join(table([row for row in alone if row.one.run.workers <= NODE])),
        january=1 / (1 + dated["2023-01"]) - 1,
        long_tokens=LONG,
        april=dated["2023-04"],
        long=median(abs(row.error) for row in alone if row.one.model.tokens >= LONG),
        anchored="\n".join(table(judged)),
        few=FEW,
        few_median=median(few),
        few_p90=quantile(few, 0.9) or 0.0,
        unseen="\n".join(unseen.table()),
        grouped="\n".join(tensor_groups.table()),
        utilised="\n".join(ratios(Path(folder))) if folder else "(OSFMODEL_DATA is not set)",
    )
    print(page, end="")


if __name__ == "__main__":
    main()
