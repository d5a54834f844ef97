"""Texts that targets write for one small workload, kept as files; not executors, whose file is a plan.

``python -m tests.targets.golden`` writes the files anew, and with the names of other targets theirs as well; read the
difference: a changed line is what users paste.
"""

from __future__ import annotations

import sys
from pathlib import Path

from osfmodel import CONFIG_TARGETS, Layer, Workload
from osfmodel.cost import AffineCost
from osfmodel.cost.pricing import Pricing
from osfmodel.solve import SOLVERS, Limits, Question

FOLDER = Path(__file__).resolve().parent / "golden"
NAMES = sorted(path.stem for path in FOLDER.iterdir())
SIZES = (4_000, 2_400_000, 4_000, 9_000_000, 4_000, 9_000_000, 4_000, 40_960_000, 4_000, 16_384_000)


def workload() -> Workload:
    """Ten tensors, weights and biases of five modules; the fourth is larger than all others."""
    layers = (
        Layer(f"{number // 2}.{'bias' if number % 2 == 0 else 'weight'}", 1e-3, 4e-3, size)
        for number, size in enumerate(SIZES)
    )
    return Workload("five-modules", tuple(layers), update_time=1e-3)


def pricing() -> Pricing:
    """16 workers that pay 0.5 ms and 0.8 ns a byte."""
    return Pricing.of(AffineCost(((5e-4, 8e-10),)), workers=16)


def text(name: str) -> str:
    """The lines for the best plan."""
    target, made, price = CONFIG_TARGETS[name], workload(), pricing()
    plan = SOLVERS["optimal"].solve(Question(made, price)).require_plan()
    knobs = target.convert.complete(target.convert.from_plan(plan, made, price, Limits()), made, [price], Limits())
    return target.text.render(knobs, made)


if __name__ == "__main__":
    for each in [*NAMES, *sys.argv[1:]]:
        (FOLDER / f"{each}.txt").write_text(text(each), encoding="utf-8")
