"""Plans in two parts, fused across tensors: deep layers in ready order, then the others input first.

The first k gradients in ready order go first, in buckets in that order (F(k) of ``solve.exact``); when the last
gradient is ready too, the rest goes, nearest the input first, in runs. With r_L the last ready time, q the tails
(``solve/scheduling.py``), and the value of a suffix

    Lambda(k) = min over runs of k+1..L, sent from L down, of max over runs of (their end, counted from 0, + their q)

    t = min over k of max( F(k) + q_k, max(F(k), r_L) + Lambda(k) )                (docs/reference/planning.md)

*Exact in this family.* Tails grow in ready order, so of the buckets in order the last decides, and F(k) is least. Of
two ways to send m+1..L in runs within given deadlines, the one that ends first serves whatever follows better, so

    G(L) = 0        G(m) = min over l > m with G(l) + T(P_l - P_m) + q_l < limit of G(l) + T(P_l - P_m)

says whether Lambda(m) < limit, for all m at once; any T >= 0 will do. Lambda(k) is found by bisection and then improved
until nothing is below it. The k are tried from the least bound up, until the bound passes the best value; one G with
the limit that k = 0 would have rules out all k that cannot be better. Each k that is tried costs O(L^2 log 1/eps).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import AffineCost, Cost
from osfmodel.entities.plan import Plan, grouped_plan
from osfmodel.entities.rounding import just_below, ranked, within
from osfmodel.entities.workload import Workload
from osfmodel.solve.exact import MergeProblem, ends_of, sweep
from osfmodel.solve.scheduling import Jobs
from osfmodel.solve.solution import Limits
from osfmodel.solve.windows import minorants

HALVINGS = 24
"""Bisections of the interval of a suffix value, to a 16-millionth, before steps take over."""
KEPT = 2048
"""Maximum number of gradients for which the prices of all runs are kept (16 MB)."""


def plan(workload: Workload, jobs: Jobs, pricing: Pricing, tries: int | None = None) -> Plan:
    """The fastest plan of the family for one channel. ``jobs`` are those of ``workload`` under the rules at hand.

    With ``tries``, no more than so many k are tried, and there may be a faster one.
    """
    cost = pricing.cost()
    problem = MergeProblem.of(workload.gradients, Limits())
    return grouped_plan(workload, groups(MergeProblem(jobs.ready, problem.prefix, problem.earliest), jobs, cost, tries))


def groups(problem: MergeProblem, jobs: Jobs, cost: Cost, tries: int | None = None) -> list[range]:
    """The buckets of the fastest plan of the family, as positions in ready order. ``problem`` has the same jobs."""
    count = len(jobs.sizes)
    if not count:
        return []
    row = sweep(problem, cost)
    suffixes = _Suffixes.of(problem, jobs, cost)
    least = suffixes.bounds(cost)
    begins = [max(finish, jobs.ready[-1]) for finish in row.finish]
    alone = [0, *(finish + tail for finish, tail in zip(row.finish[1:], jobs.tails, strict=True))]
    bounds = [max(alone[k], begins[k] + least[k]) for k in range(count)] + [alone[count]]
    best, chosen = alone[count], (count, list[int]())
    hopeful = suffixes.ends(0, just_below(best) - begins[0]) < np.inf
    left = count if tries is None else tries
    for k in ranked(range(count), bounds.__getitem__, int):
        if bounds[k] >= just_below(best) or best <= within(jobs.least) or not left:
            break
        if hopeful[k]:
            left -= 1
            found = suffixes.value(k, just_below(best) - begins[k], max(least[k], alone[k] - begins[k]))
            if found is not None:
                best, chosen = max(alone[k], begins[k] + found[0]), (k, found[1])
                hopeful = suffixes.ends(0, just_below(best) - begins[0]) < np.inf
    runs = pairwise([0, *ends_of(problem, cost, row, chosen[0])])
    later = zip(chosen[1], [count, *chosen[1]], strict=False)  # from the last gradient down
    return [range(*run) for run in (*runs, *later)]


@dataclass(frozen=True, slots=True)
class _Suffixes:
    """Runs from the last gradient down. ``reach``: for each m, the position after the last in a run with it."""

    prefix: Any
    tails: Any
    reach: Sequence[int]
    price: Callable[[Any], Any]
    largest: int
    rows: dict[int, Any] = field(default_factory=dict)

    @staticmethod
    def of(problem: MergeProblem, jobs: Jobs, cost: Cost) -> _Suffixes:
        """The suffixes of these jobs; in rational numbers if the jobs and a price by lines are rational."""
        whole = isinstance(jobs.ready[-1] + jobs.tails[-1] + cost(1), float) or not isinstance(cost, AffineCost)
        kind = float if whole else object
        reach: list[int] = []
        for _, run in groupby(jobs.dtypes):
            length = len(list(run))
            reach += [len(reach) + length] * length
        return _Suffixes(
            np.array(problem.prefix, dtype=kind), np.array(jobs.tails, dtype=kind), reach, cost, problem.prefix[-1]
        )

    def bounds(self, cost: Cost) -> list[float]:
        """Lower bounds of each Lambda(k): everything after some l > k is sent before l's tail begins."""
        startup, per_byte = minorants(cost, self.largest)[-1]
        found: list[float] = []
        for k in reversed(range(len(self.tails))):
            here = startup + per_byte * (self.prefix[-1] - self.prefix[k]) + self.tails[k]
            found.append(max(here, found[-1]) if found else here)
        return found[::-1]

    def value(self, k: int, limit: float, enough: float) -> tuple[float, list[int]] | None:
        """Lambda(k) and the starts of its runs, from the last down; None if it is not below ``limit``.

        The search stops at ``enough``.
        """
        best = self._below(k, limit)
        low = enough
        for _ in range(HALVINGS if best else 0):
            if best is None or best[0] <= within(low):
                return best
            middle = (low + best[0]) / 2
            found = self._below(k, middle)
            best, low = (found, low) if found else (best, middle)
        while best and best[0] > within(enough) and (found := self._below(k, just_below(best[0]))):
            best = found
        return best

    def _below(self, k: int, limit: float) -> tuple[float, list[int]] | None:
        ends = self.ends(k, limit)
        if not ends[k] < np.inf:
            return None
        starts, position = [], k
        value: float = 0
        while position < len(self.tails):
            starts.append(position)
            alike = np.flatnonzero(self._times(ends, position, limit) <= within(ends[position]))
            following = position + 1 + int(alike[0])
            value = max(value, ends[position] + self.tails[following - 1])
            position = following
        return value, starts[::-1]

    def ends(self, k: int, limit: float) -> Any:
        """G(m) for all m from k on, infinite if there is none."""
        count = len(self.tails)
        ends = np.full(count + 1, np.inf, dtype=self.prefix.dtype)
        ends[count] = 0
        for m in range(count - 1, k - 1, -1):
            ends[m] = self._times(ends, m, limit).min()
        return ends

    def _times(self, ends: Any, m: int, limit: float) -> Any:
        """G(l) + T(P_l - P_m) for each l after m, infinite where what follows the run then ends too late."""
        stop = self.reach[m] + 1
        times = ends[m + 1 : stop] + self._row(m)
        return np.where(times + self.tails[m : stop - 1] < limit, times, np.inf)

    def _row(self, m: int) -> Any:
        """The prices of all runs that begin at m."""
        row = self.rows.get(m)
        if row is None:
            row = self.price(self.prefix[m + 1 : self.reach[m] + 1] - self.prefix[m])
            if len(self.tails) <= KEPT:
                self.rows[m] = row
        return row
