"""Random problems and costs that many tests share. Every generator takes a seeded numpy generator."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from osfmodel.cost import AffineCost, Cost, TableCost
from osfmodel.cost.pricing import Pricing
from osfmodel.entities.workload import Gradients, Layer, Workload
from osfmodel.solve import Limits, Question
from tests.conftest import gradients


def asked(workload: Workload, cost: Cost, limits: Limits = Limits()) -> Question:
    """The question under plain rules where only the cost of an all-reduce is known."""
    return Question(workload, Pricing.of(cost), limits=limits)


def random_problem(rng: np.random.Generator) -> Gradients:
    """1 to 9 tensors, with ties in ready times, zero-byte ones and runs of dtypes, each now and then."""
    count = int(rng.integers(1, 10))
    steps = rng.exponential(1.0, count) * rng.choice([0.0, 0.3, 1.0], count)
    sizes = (rng.pareto(1.0, count) * 20).astype(int) * rng.choice([0, 1, 1, 1], count)
    dtypes = ["float32"] * count
    if rng.random() < 0.3:
        dtypes = list(rng.choice(["float32", "bfloat16"], count))
    return gradients(np.cumsum(steps).tolist(), np.minimum(sizes, 200).tolist(), dtypes)


def affine(rng: np.random.Generator) -> AffineCost:
    return AffineCost(((float(rng.exponential(0.5)), float(rng.exponential(0.02))),))


def min_of_affine(rng: np.random.Generator) -> AffineCost:
    count = int(rng.integers(2, 5))
    return AffineCost(
        tuple(
            (float(a), float(b)) for a, b in zip(rng.exponential(1, count), rng.exponential(0.02, count), strict=False)
        )
    )


def jumping(rng: np.random.Generator) -> TableCost:
    """Any time at any size, up and down: a table with a point at nearly every byte."""
    sizes = np.unique(rng.integers(1, 1800, 400))
    return TableCost(tuple(sizes.tolist()), tuple(rng.exponential(1.0, len(sizes)).tolist()))


def coarse_table(rng: np.random.Generator) -> TableCost:
    """A few points, rising on the whole with noise, as measured tables are."""
    sizes = np.unique(rng.integers(1, 600, 8))
    while len(sizes) < 2:
        sizes = np.unique(rng.integers(1, 600, 8))
    times = 0.3 + 0.01 * sizes + rng.normal(0, 0.3, len(sizes))
    return TableCost(tuple(sizes.tolist()), tuple(np.abs(times).tolist()))


COST_MAKERS = (affine, min_of_affine, jumping, coarse_table)
"""Makers of random costs, one for each shape that solvers, bounds and engines must bear."""


def tiny_workload(rng: np.random.Generator, most: int = 6) -> Workload:
    """1 to 4 layers, whole numbers for times, a few bytes in all, now and then a layer without any."""
    sizes = rng.integers(0, 4, int(rng.integers(1, 5))).tolist()
    sizes[0] = max(sizes[0], 1)
    while sum(sizes) > most:
        sizes[int(np.argmax(sizes))] -= 1
    times = rng.integers(0, 6, (2, len(sizes))).tolist()
    layers = [
        Layer(f"l{i}", Fraction(f), Fraction(b), size, "int8")
        for i, (f, b, size) in enumerate(zip(*times, sizes, strict=True))
    ]
    return Workload("small", tuple(layers), update_time=Fraction(sum(sizes) * int(rng.integers(1, 3))))
