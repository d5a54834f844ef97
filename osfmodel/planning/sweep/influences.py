"""The influence of each column of a grid on an answer: the parts of its variance, exactly, from all combinations."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from osfmodel.counting import in_words
from osfmodel.counting.words import on_gpu
from osfmodel.entities.display import how_many
from osfmodel.entities.lookup import require
from osfmodel.entities.rounding import plain_sum
from osfmodel.planning.sweep import GIVEN, GOALS, Record, comparable


@dataclass(frozen=True, slots=True)
class Influence:
    """The influence of one column of a grid on a goal.

    alone:    part of the variance of the goal's logarithm that the column explains by itself (first Sobol' index)
    together: part that would be gone if it were fixed, shares with other columns included (total Sobol' index)
    ratio:    largest over smallest geometric mean of the goal among its values
    """

    column: str
    alone: float
    together: float
    ratio: float


class Influences(NamedTuple):
    """The influences on ``goal``, the largest first; ``missing``: combinations of their values without a point."""

    goal: str
    columns: Sequence[Influence]
    missing: int

    @property
    def remarks(self) -> list[str]:
        """A remark if the parts are not exact, since combinations are missing."""
        if not self.missing:
            return []
        few = f"{how_many(self.missing, 'combination')} of the grid's values {'has' if self.missing == 1 else 'have'}"
        return [f"{few} no {self.goal}: the parts are estimated from the others"]


def influences(records: Iterable[Record], goal: str) -> Influences:
    """The influence of each column of the grid that varies.

    Exact for all combinations of a grid: its values count as equally likely. Points without the goal are left out.
    A workload in words that was taken for the GPU of each cluster counts as one value. Raises UsageError for an unknown
    goal, and for costs in different units.
    """
    require(goal, GOALS, "goal")
    values: list[float] = []
    places: dict[str, list[Any]] = {name: [] for name in GIVEN}
    for record in comparable(records, [goal]):
        if record[goal] > 0:
            values.append(math.log(record[goal]))
            for name, column in places.items():
                column.append(record[name])
    places["workload"] = _of_the_grid(places["workload"], places["cluster"])
    found = []
    whole = _of_means([(value, 1) for value in values])  # the variance
    varying: list[str] = []
    for name in (name for name, column in places.items() if len(set(column)) > 1):
        if not any(_follows(places[name], places[other]) for other in varying):
            varying.append(name)
    for name in varying if whole > 0 else ():
        means = _means(values, places[name])
        others = [places[other] for other in varying if other != name]
        rest = _means(values, list(zip(*others, strict=True)) or [()] * len(values))
        spread = [math.exp(mean) for mean, _ in means]
        found.append(Influence(name, _of_means(means) / whole, 1 - _of_means(rest) / whole, max(spread) / min(spread)))
    columns = [places[name] for name in varying]
    combinations = math.prod(len(set(column)) for column in columns)
    missing = combinations - len(set(zip(*columns, strict=True))) if columns else 0
    return Influences(goal, sorted(found, key=lambda one: -one.together), missing)


def _of_the_grid(workloads: Sequence[Any], clusters: Sequence[Any]) -> list[Any]:
    """The entry of the grid for each workload: words without their GPU, unless one cluster has them for several."""
    words = {name: on_gpu(name, "") if in_words(str(name)) else name for name in set(workloads)}
    counts = Counter((words[name], cluster) for name, cluster in set(zip(workloads, clusters, strict=True)))
    several = {one for (one, _), count in counts.items() if count > 1}
    return [name if words[name] in several else words[name] for name in workloads]


def _follows(column: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether the value of a column follows from that of the other, as a batch that only its workload says."""
    return len(set(zip(column, other, strict=True))) == len(set(other))


def _means(values: Sequence[float], groups: Sequence[Any]) -> list[tuple[float, int]]:
    """The mean of the values in each group, and their number."""
    sums: dict[Any, list[float]] = defaultdict(list)
    for value, group in zip(values, groups, strict=True):
        sums[group].append(value)
    return [(plain_sum(one) / len(one), len(one)) for one in sums.values()]


def _of_means(means: Sequence[tuple[float, int]]) -> float:
    """Variance of means, each counted as often as it has values."""
    count = sum(number for _, number in means)
    if not count:
        return 0.0
    middle = plain_sum(mean * number for mean, number in means) / count
    return plain_sum((mean - middle) ** 2 * number for mean, number in means) / count
