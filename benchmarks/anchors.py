"""Compare ways in which one measured step corrects the predictions of other settings. Prints a table:

    python benchmarks/anchors.py

Each run of a model, GPU, software and type is the anchor of all others of them, which differ in batch, sequence, groups
or recomputation. Efficiencies are learned without the source. Ways: no anchor; the whole computation scaled, as by
``osf scale --anchor``; and the parts corrected, each by its doubt and its share of the step, so that shapes are kept.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple
from unittest.mock import patch

from scipy.optimize import brentq

from osfmodel.counting import roofline
from osfmodel.counting.stacks import STACKS, Learned, Traffic
from osfmodel.engine.bands import quantile

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
            part._replace(beside={name: (x * collectives, y * collectives) for name, (x, y) in part.beside.items()})
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


def main() -> None:
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
