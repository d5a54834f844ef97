"""Ask open predictors, and ours, for the same published runs. Prints docs/ledger/peers.md:

    python -m venv peers && . peers/bin/activate
    pip install '.[peers]' && pip install --no-deps llm-analysis fire termcolor
    OSFMODEL_DATA=FOLDER python benchmarks/peers --plot docs/ledger/peers.png > docs/ledger/peers.md

``--plot`` draws the runs that all can say (needs matplotlib), ``--every N`` takes each Nth run of nanotron and MosaicML
(4), ``--only NAME`` one predictor, ``--rows`` a CSV of every answer instead. To add a predictor: adapters/__init__.py;
a run: rows.py. Predictors that are no package are put into benchmarks/peers/sources as their line says, and are named
as not run where they are missing.
"""

from __future__ import annotations

import argparse
import csv
import logging
import math
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from adapters import Answer, MissingError, Peer, UnsaidError
from rows import PeerRow, rows
from table import NOT_ASKED, PEERS

from osfmodel.engine.bands import quantile


class Asked(NamedTuple):
    """The answers of a predictor, None where it cannot express a run, the reasons, and seconds for each answer."""

    version: str
    answers: Sequence[Answer | None]
    reasons: Counter[str]
    pace: float


def ask(peer: Peer, asked: Sequence[PeerRow]) -> Asked:
    """Ask one predictor for all runs, the first twice; ``pace`` is a median, without what it loads or learns."""
    version = peer.open()
    answers: list[Answer | None] = []
    reasons: Counter[str] = Counter()
    spent = []
    for row in [*asked[:1], *asked]:
        began = time.perf_counter()
        try:
            answers.append(peer.ask(row))
            spent.append(time.perf_counter() - began)
        except UnsaidError as error:
            answers.append(None)
            reasons[str(error)] += len(answers) > 1
        except Exception as error:  # a fault of a predictor is one of its answers
            answers.append(None)
            reasons[f"it fails with {type(error).__name__}"] += len(answers) > 1
    return Asked(version, answers[1:], +reasons, median(spent or [math.nan]))


def percent(value: float | None, signed: bool = False) -> str:
    """A fraction in percent, of two digits at most."""
    if value is None:
        return "-"
    return f"{value:+.0%}" if signed else f"{value:.0%}"


def errors(pairs: Iterable[tuple[float, float]]) -> str:
    """Runs, median and 90th percentile of |predicted / measured - 1|, and the median with its sign, as cells."""
    off = [predicted / measured - 1 for predicted, measured in pairs]
    if not off:
        return "0 | - | - | -"
    sizes = [abs(one) for one in off]
    cells = [percent(median(sizes)), percent(quantile(sizes, 0.9) or max(sizes)), percent(median(off), True)]
    return " | ".join([str(len(off)), *cells])


def timed(asked: Sequence[PeerRow], own: Asked) -> list[tuple[PeerRow, float]]:
    """Runs with the seconds that a predictor says."""
    pairs = zip(asked, own.answers, strict=True)
    return [(row, answer.seconds) for row, answer in pairs if answer and answer.seconds]


def scaled(pairs: Sequence[tuple[PeerRow, float]]) -> list[tuple[float, float]]:
    """Predicted, scaled by one factor learned on other sources, and measured: what a constant efficiency would mend."""
    found = []
    for source in dict.fromkeys(row.source for row, _ in pairs):
        others: dict[str, list[float]] = {}
        for row, said in pairs:
            if row.source != source:
                others.setdefault(row.source, []).append(math.log(row.seconds / said))
        if others:
            factor = math.exp(median(median(one) for one in others.values()))
            found += [(factor * said, row.seconds) for row, said in pairs if row.source == source]
    return found


def covered(asked: Sequence[PeerRow], own: Asked) -> str:
    """Part of the runs inside their bands, and the bands' median half width."""
    banded = [(row, one) for row, one in zip(asked, own.answers, strict=True) if one and one.band and one.seconds]
    if not banded:
        return "no band | -"
    inside = sum(one.band[0] <= row.seconds <= one.band[1] for row, one in banded)
    widths = [(one.band[1] - one.band[0]) / 2 / one.seconds for _, one in banded]
    return f"{percent(inside / len(banded))} | {percent(median(widths))}"


def weighed(pairs: Sequence[tuple[PeerRow, float]]) -> str:
    """Median of the sources' medians of |error|: each source weighs the same."""
    own: dict[str, list[float]] = {}
    for row, said in pairs:
        own.setdefault(row.source, []).append(abs(said / row.seconds - 1))
    return percent(median(map(median, own.values()))) if own else "-"


def by_time(asked: Sequence[PeerRow], found: Mapping[str, Asked]) -> Iterator[str]:
    """The table of step times."""
    yield (
        "| predictor | runs it can say | of all | median error | p90 | bias | median by source | "
        "with one factor of others | in its band | half width | 1,000 answers |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for name, own in found.items():
        pairs = timed(asked, own)
        if not pairs:
            continue
        cells = errors((said, row.seconds) for row, said in pairs)
        runs, rest = cells.split(" | ", 1)
        mended = [abs(said / measured - 1) for said, measured in scaled(pairs)]
        yield (
            f"| {name} | {runs} | {percent(len(pairs) / len(asked))} | {rest} | {weighed(pairs)} | "
            f"{percent(median(mended) if mended else None)} | {covered(asked, own)} | {1000 * own.pace:.2g} s |"
        )


def common(asked: Sequence[PeerRow], found: Mapping[str, Asked]) -> tuple[list[str], list[int]]:
    """The predictors of time that say at least COMMON runs, and the runs that all of them say."""
    names = [name for name, own in found.items() if len(timed(asked, own)) >= COMMON]
    said = [i for i in range(len(asked)) if all((a := found[n].answers[i]) and a.seconds for n in names)]
    return names, said


COMMON = 100
"""Runs that a predictor must say to be compared on common ones."""


def on_common(asked: Sequence[PeerRow], found: Mapping[str, Asked]) -> Iterator[str]:
    """The table of step times on the runs that all can say."""
    names, said = common(asked, found)
    sources = Counter(asked[i].source for i in said)
    yield f"{len(said)} runs: {', '.join(f'{name} {runs}' for name, runs in sources.items())}."
    yield ""
    yield "| predictor | runs | median error | p90 | bias | " + " | ".join(sources) + " |"
    yield "|---|---|---|---|---|" + "---|" * len(sources)
    for name in names:
        pairs = [(asked[i], found[name].answers[i].seconds) for i in said]
        each = [percent(median(abs(s / r.seconds - 1) for r, s in pairs if r.source == source)) for source in sources]
        yield f"| {name} | {errors((s, r.seconds) for r, s in pairs)} | {' | '.join(each)} |"


def plot(asked: Sequence[PeerRow], found: Mapping[str, Asked], path: Path) -> None:
    """Draw medians and 90th percentiles of |error| of step times on the runs that all can say. Needs matplotlib."""
    import matplotlib  # noqa: PLC0415 - needed for this alone

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    names, said = common(asked, found)
    sizes = {name: [abs(found[name].answers[i].seconds / asked[i].seconds - 1) for i in said] for name in names}
    names.sort(key=lambda name: -median(sizes[name]))
    figure, axes = plt.subplots(figsize=(7, 0.42 * len(names) + 1.1), layout="constrained")
    for place, name in enumerate(names):
        middle, high = 100 * median(sizes[name]), 100 * (quantile(sizes[name], 0.9) or max(sizes[name]))
        own = "#1f77b4" if name.startswith("osfmodel") else "#8c8c8c"
        axes.plot([middle, high], [place, place], color=own, linewidth=3, solid_capstyle="butt")
        axes.plot(middle, place, "o", color=own, markersize=8)
        axes.annotate(f"{middle:.0f}%", (middle, place), (-7, 0), textcoords="offset points", ha="right", va="center")
    axes.set_yticks(range(len(names)), names)
    axes.set_xlim(0)
    axes.set_xlabel(f"error of a step's time on {len(said)} published runs: median, and up to the 90th percentile (%)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def by_memory(asked: Sequence[PeerRow], found: Mapping[str, Asked]) -> Iterator[str]:
    """The table of memory, of allocated and reserved peaks apart."""
    yield "| predictor | what it counts | runs | median error | p90 | bias | allocated: runs | median | p90 | bias |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for name, own in found.items():
        told = [(r, a.memory) for r, a in zip(asked, own.answers, strict=True) if a and a.memory and r.memory]
        if told and PEERS[name].memory:
            parts = [errors((said, row.memory) for row, said in told if row.reserved == kind) for kind in (True, False)]
            yield f"| {name} | {PEERS[name].memory} | {' | '.join(parts)} |"


def asked_how(found: Mapping[str, Asked]) -> Iterator[str]:
    """The table of predictors."""
    yield "| predictor | version | how it is asked | what it cannot say (runs) |"
    yield "|---|---|---|---|"
    for name, own in found.items():
        why = "; ".join(f"{reason} ({runs})" for reason, runs in own.reasons.most_common(4)).replace("|", "/")
        yield f"| {name} | {own.version} | {PEERS[name].how} | {why or '-'} |"


PAGE = """# Beside other predictors

`OSFMODEL_DATA=FOLDER python benchmarks/peers` prints this: open predictors of training asked, each with its own
defaults, for {runs} published runs of {sources} sources. Nothing is fitted for any of them. Errors are predicted /
measured - 1.

Efficiencies that come with osfmodel were learned from these sources' runs on the fewest GPUs; "held out" learns
them again without the source of each run. Constants of ours were chosen with all of these runs in view, and bands of
communication were learned from some of them. No other predictor saw them, as far as is known, but SimuMax its own.

## Step times

{time}

"Median by source" gives each source the same weight; "with one factor of others" scales times by one factor that was
learned on the other sources. Large errors of all are of nanotron's small models on many nodes.

## On runs that all can say

![median and 90th percentile of each predictor's errors](peers.png)

{common}

## Memory

Reserved by PyTorch's allocator on the left (torchtitan, nanotron), allocated on the right (SimuMax). A predictor that
counts states alone is low by the activations.

{memory}

## Predictors

{how}

Not asked here:

{missing}
"""


def table_of_rows(asked: Sequence[PeerRow], found: Mapping[str, Asked]) -> None:
    """Print every answer as CSV."""
    writer = csv.writer(sys.stdout)
    writer.writerow(
        ["source", "words", "gpus", "plan", "layout", "seconds", "memory_bytes", "predictor", "said_s", "said_bytes"]
    )
    for name, own in found.items():
        for row, answer in zip(asked, own.answers, strict=True):
            one = row.stated
            said = [answer.seconds, answer.memory] if answer else ["", ""]
            writer.writerow(
                [one.source, one.words, one.gpus, one.plan, one.groups.words, one.seconds, row.memory, name, *said]
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--only", choices=list(PEERS), action="append")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    asked = rows(options.every)
    found: dict[str, Asked] = {}
    missing = [f"* {name}: {reason}." for name, reason in NOT_ASKED.items()]
    for name in options.only or PEERS:
        began = time.perf_counter()
        try:
            with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
                found[name] = ask(PEERS[name], asked)
        except MissingError as error:
            missing.append(f"* {name}: {error}.")
        print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    if options.rows:
        table_of_rows(asked, found)
        return
    if options.plot:
        plot(asked, found, options.plot)
    page = PAGE.format(
        runs=len(asked),
        sources=len({row.source for row in asked}),
        time="\n".join(by_time(asked, found)),
        common="\n".join(on_common(asked, found)),
        memory="\n".join(by_memory(asked, found)),
        how="\n".join(asked_how(found)),
        missing="\n".join(missing),
    )
    print(page, end="")


if __name__ == "__main__":
    main()
