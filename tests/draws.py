"""Part of many cases for every day; the others are marked long, and run by ``.ci/long``."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import pytest


def seeds(count: int, most: int) -> list[Any]:
    """Values of a parameter: the first ``count`` numbers, and those up to ``most`` marked long."""
    return [*range(count), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(count, most))]


def examples(count: int) -> int:
    """So many random cases every day, and as many times more as OSFMODEL_EXAMPLES says, for ``.ci/long``."""
    return count * int(os.environ.get("OSFMODEL_EXAMPLES", "1"))


def many(count: int, most: int) -> pytest.MarkDecorator:
    """A parameter ``many``: how many cases a test draws itself, every day and as a long test."""
    return pytest.mark.parametrize("many", [count, pytest.param(most, marks=pytest.mark.long)])


def covering(cases: Sequence[frozenset[object]], seed: str) -> set[int]:
    """Few of many cases, by their places: each entry of a case is in one of them. The seed fixes the draw."""
    order = Random(seed).sample(range(len(cases)), len(cases))
    bits = {entry: 1 << number for number, entry in enumerate(set[object]().union(*cases))}
    held = [sum(bits[entry] for entry in case) for case in cases]
    missing, chosen = (1 << len(bits)) - 1, set[int]()
    while missing:
        best = max(order, key=lambda place: (missing & held[place]).bit_count())
        chosen.add(best)
        missing &= ~held[best]
    return chosen


def few(cases: Iterable[tuple[object, ...]], seed: str) -> list[Any]:
    """Few of a product of lists, in its order: each entry of each list is in one of them."""
    those = list(cases)
    chosen = covering([frozenset(enumerate(map(repr, case))) for case in those], seed)
    return [those[place] for place in sorted(chosen)]


def every(cases: Iterable[tuple[object, ...]], seed: str) -> list[Any]:
    """All of a product of lists."""
    return list(cases)


DRAWS = [few, pytest.param(every, marks=pytest.mark.long)]
"""Values of a parameter ``draw``: what a test takes of a product that it walks itself, every day and as a long test."""


def entries_of(item: pytest.Item) -> frozenset[object]:
    """The entries that a test has from each ``parametrize``."""
    params = item.callspec.params  # type: ignore[attr-defined]
    names = (mark.args[0] for mark in item.iter_markers("parametrize"))
    sets = (re.findall(r"\w+", one) if isinstance(one, str) else one for one in names)
    return frozenset((name, *(id(params[name]) for name in found)) for found in sets for name in found[:1])


def leave_to_long(items: Iterable[pytest.Item]) -> None:
    """Of each test marked ``covering``, mark long what the draw leaves out of the product of its parameters."""
    products = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("covering"):
            products[item.nodeid.partition("[")[0]].append(item)
    for name, product in products.items():
        chosen = covering([entries_of(item) for item in product], name)
        for place, item in enumerate(product):
            if place not in chosen:
                item.add_marker("long")
