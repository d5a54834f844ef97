"""The layer in which each cut lies, as a mixed-integer programme: the exact optimum of small instances.

The family: one channel; the bytes sent in one of a few orders (in ready order; with forward overlap also in ready order
up to some gradient and the rest by priority); cut anywhere, also inside tensors. Over all of these the value returned
is the least, but for the tolerance of the solver. It takes seconds for eight layers, so it is no scheduler: it is what
``osfmodel.solve.blocks`` is held against, by tests/solve/test_blocks.py and by blocks.py beside it.

Beside the unknowns of the linear programme (solve.blocks.programme): z_kc = 1 where cut k is in place c, of all
insides and edges of the segments. Then collective k holds segment s exactly where

    u_ks = [cut k ends at s or later] + [cut k-1 begins at s or before] - 1 = 1,

a sum of z, so that readiness and tails of whatever it holds are linear: for every s, F_k >= T(m_k) + r_s u_ks and
T >= F_k + q_s u_ks. Of a cost of several lines w_kj = 1 where collective k is priced by line j; m_kj are its bytes
then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import Array
from osfmodel.entities.plan import Objective
from osfmodel.entities.workload import Workload
from osfmodel.solve.blocks import linear, snapped
from osfmodel.solve.blocks.resize import Sized, SizingProblem, problem_of, resized
from osfmodel.solve.blocks.tape import Cut, Tape, laid_out, plan_of
from osfmodel.solve.solution import Limits, Question, Solution, Status

COLLECTIVES = 6
"""So many collectives at most where the limits do not say."""
LAYERS = 12
"""Instances of more gradients are refused: the programme would not end within minutes."""
RELATIVE_GAP = 1e-7
AGREEMENT = 1e-5
"""The bound of the solver may fall short of the time of its plan by this fraction, for its tolerances; else the
status says that nothing is proven."""
INFEASIBLE = 2
"""scipy's status for an infeasible problem."""


class Certificate(NamedTuple):
    """The plan with its timeline from the engine, the seconds of the iteration before rounding to whole elements, the
    seconds that no member of the family beats, and whether these agree."""

    solution: Solution
    optimum: float
    bound: float
    proven: bool = False


def certified(
    workload: Workload, pricing: Pricing, objective: Objective, limits: Limits = Limits(), seconds: float = 60
) -> Certificate:
    """The optimum of the family within the limits, by one mixed-integer programme per order and number of collectives,
    each of which may take so many ``seconds``."""
    question = Question(workload, pricing, objective, limits)
    status = _refusal(workload, pricing, objective)
    if status:
        return Certificate(Solution(question, None, status), np.inf, question.lower_bound)
    problem = problem_of(workload, pricing, objective, limits.max_bucket_bytes)
    search = _Search(problem, seconds)
    for count in range(1, (limits.max_buckets or COLLECTIVES) + 1):
        for order in orders(workload, objective):
            search.extend(laid_out(workload, order), count)
    return search.certificate(question)


def orders(workload: Workload, objective: Objective) -> Iterator[list[int]]:
    """The orders of the family, as positions in ready order: last in ready order alone, first all by priority."""
    count = len(workload.gradients)
    for turn in range(count - 1) if objective.forward_overlap else ():
        yield [*range(turn), *reversed(range(turn, count))]
    yield list(range(count))


@dataclass(slots=True)
class _Search:
    """The best that the programmes solved so far have found, and the seconds below which they have ruled out all."""

    problem: SizingProblem
    seconds: float
    best: Sized | None = None
    bound: float = np.inf
    ended: bool = True

    def extend(self, tape: Tape, count: int) -> None:
        """Look at one order and number of collectives; what cannot beat the best is ruled out by the programme."""
        if self.problem.largest * count < tape.total:
            return
        cutoff = self.best.value if self.best else _slowest(self.problem, tape, count)
        choice = _Choice(self.problem, tape, count, cutoff)
        cuts, bound, ended = choice.solve(cutoff, self.seconds)
        self.bound, self.ended = min(self.bound, bound), self.ended and ended
        if cuts is not None:
            found = snapped(self.problem, resized(self.problem, tape, cuts))
            if self.best is None or found.value < self.best.value:
                self.best = found

    def certificate(self, question: Question) -> Certificate:
        """The outcome, timed by the engine."""
        if self.best is None:
            status = Status.INFEASIBLE if self.ended else Status.NOT_CONVERGED
            return Certificate(Solution(question, None, status), np.inf, self.bound)
        positions = [cut.position for cut in self.best.cuts]
        plan = plan_of(question.workload, self.best.tape, positions).under(question.objective)
        proven = self.ended and self.bound >= self.best.value * (1 - AGREEMENT)
        status = self.best.status or (Status.HEURISTIC if proven else Status.NOT_CONVERGED)
        solution = Solution(question, plan, status)
        return Certificate(solution, self.best.value, min(self.bound, self.best.value), proven and not self.best.status)


class _Rows:
    """Rows ``low <= sum of coefficient * unknown``, collected one by one."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, float]] = []
        self.low: list[float] = []

    def add(self, terms: Mapping[int, float], low: float) -> None:
        """One more row."""
        self.entries += [(len(self.low), unknown, value) for unknown, value in terms.items()]
        self.low.append(low)

    def constraint(self, unknowns: int) -> Any:
        """All rows, for scipy."""
        rows, columns, values = zip(*self.entries, strict=True)
        return LinearConstraint(csr_array((values, (rows, columns)), (len(self.low), unknowns)), lb=self.low)


@dataclass(frozen=True, slots=True)
class _Choice:
    """The programme of one tape and number of collectives; numbers of its unknowns by what they stand for."""

    problem: SizingProblem
    tape: Tape
    count: int
    scale: float

    @property
    def places(self) -> list[tuple[int, int]]:
        """(before, after) of every place: inside each segment, and on each edge."""
        segments = len(self.tape.segments)
        return [(s, s) for s in range(segments)] + [(s, s + 1) for s in range(segments - 1)]

    @property
    def unknowns(self) -> int:
        """How many there are: positions, finishes, T, choices of place, choices of line, bytes on each line."""
        return self.line(self.count, 0) + self.count * len(self.problem.lines[0])

    def finish(self, k: int) -> int:
        """Number of F_k; that of T is finish(count)."""
        return self.count - 1 + k

    def choice(self, k: int, c: int) -> int:
        """Number of z_kc."""
        return 2 * self.count + k * len(self.places) + c

    def line(self, k: int, j: int) -> int:
        """Number of w_kj."""
        return self.choice(self.count - 1, 0) + k * len(self.problem.lines[0]) + j

    def load(self, k: int, j: int) -> int:
        """Number of m_kj."""
        return self.line(self.count, 0) + k * len(self.problem.lines[0]) + j

    def holds(self, k: int, s: int) -> tuple[dict[int, float], float]:
        """u_ks as a sum of unknowns and a constant."""
        terms: dict[int, float] = {}
        if k < self.count - 1:
            terms |= {self.choice(k, c): 1.0 for c, (before, _) in enumerate(self.places) if before >= s}
        if k:
            terms |= {self.choice(k - 1, c): 1.0 for c, (_, after) in enumerate(self.places) if after <= s}
        return terms, float((k == self.count - 1) + (k == 0) - 1)

    def solve(self, cutoff: float, seconds: float) -> tuple[list[Cut] | None, float, bool]:
        """The best cuts of at most ``cutoff`` seconds, None where none were found; the seconds below which there are
        none; and whether the solver went to the end."""
        rows = _Rows()
        self._price(rows)
        self._place(rows)
        self._wait(rows)
        size, first, last = self.unknowns, self.choice(0, 0), self.load(0, 0)
        goal, integral = np.zeros(size), np.zeros(size)
        goal[self.finish(self.count)] = 1
        integral[first:last] = 1
        upper = np.full(size, np.inf)
        upper[first:last] = 1
        upper[self.finish(self.count)] = cutoff / self.scale
        options = {"time_limit": seconds, "mip_rel_gap": RELATIVE_GAP}
        found = milp(
            goal, integrality=integral, bounds=Bounds(0, upper), constraints=rows.constraint(size), options=options
        )
        cuts = None if found.x is None else self._cuts(found.x)
        if found.status == INFEASIBLE:
            return None, cutoff, True
        return cuts, (found.mip_dual_bound or 0) * self.scale, found.status == 0

    def _cuts(self, found: Array) -> list[Cut]:
        """The cuts; two on one edge are one, since the collective between them is empty."""
        cuts: list[Cut] = []
        for k in range(self.count - 1):
            chosen = max(range(len(self.places)), key=lambda c: found[self.choice(k, c)])
            before, after = self.places[chosen]
            position = min(
                max(float(found[k]) * self.tape.total, self.tape.starts[after]), self.tape.starts[before + 1]
            )
            if not cuts or before >= cuts[-1].after:
                cuts.append(Cut(before, after, position))
        return cuts

    def _price(self, rows: _Rows) -> None:
        """One line per collective; the bytes on it are the size; the channel carries one after the other."""
        total, lines = self.tape.total, self.problem.lines[0]
        for k in range(self.count):
            one = {self.line(k, j): 1.0 for j in range(len(lines))}
            rows.add(one, 1)
            rows.add(dict.fromkeys(one, -1.0), -1)
            size = {self.load(k, j): 1.0 for j in range(len(lines))}
            if k < self.count - 1:
                size[k] = -1.0
            if k:
                size[k - 1] = 1.0
            whole = float(k == self.count - 1)
            rows.add(size, whole)
            rows.add({unknown: -value for unknown, value in size.items()}, -whole)
            for j, line in enumerate(lines):
                most = min(line.most, self.problem.largest) / total
                rows.add({self.line(k, j): most, self.load(k, j): -1.0}, 0)
                rows.add({self.line(k, j): -line.least / total, self.load(k, j): 1.0}, 0)
            rows.add(self._after_price(k) | ({self.finish(k - 1): -1.0} if k else {}), 0)

    def _after_price(self, k: int) -> dict[int, float]:
        """F_k less the price of collective k, as a sum of unknowns."""
        terms = {self.finish(k): 1.0}
        for j, line in enumerate(self.problem.lines[0]):
            terms[self.line(k, j)] = -line.latency / self.scale
            terms[self.load(k, j)] = -line.slope * self.tape.total / self.scale
        return terms

    def _place(self, rows: _Rows) -> None:
        """Each cut is in one place, between the ends of it."""
        starts, total = self.tape.starts, self.tape.total
        for k in range(self.count - 1):
            chosen = {self.choice(k, c): 1.0 for c in range(len(self.places))}
            rows.add(chosen, 1)
            rows.add(dict.fromkeys(chosen, -1.0), -1)
            rows.add(
                {k: 1.0} | {self.choice(k, c): -starts[after] / total for c, (_, after) in enumerate(self.places)}, 0
            )
            ends = {self.choice(k, c): starts[before + 1] / total for c, (before, _) in enumerate(self.places)}
            rows.add({k: -1.0} | ends, 0)

    def _wait(self, rows: _Rows) -> None:
        """Add the waits: a collective waits for all that it holds, and the iteration goes on after it. Types
        never share a message."""
        times, segments, end = self.problem.times, self.tape.segments, self.finish(self.count)
        kinds = [self.problem.dtypes[segment.layer] for segment in segments]
        rows.add({end: 1.0}, times.least / self.scale)
        for k in range(self.count):
            for s, segment in enumerate(segments):
                held, constant = self.holds(k, s)
                ready, tail = times.ready[segment.layer] / self.scale, times.tails[segment.layer] / self.scale
                after = self._after_price(k)
                rows.add(after | {unknown: -ready * value for unknown, value in held.items()}, ready * constant)
                left = {end: 1.0, self.finish(k): -1.0}
                rows.add(left | {unknown: -tail * value for unknown, value in held.items()}, tail * constant)
                rows.add(held, -constant)
                if s and kinds[s] != kinds[s - 1]:
                    before, _ = self.holds(k, s - 1)
                    both = {unknown: -held.get(unknown, 0) - before.get(unknown, 0) for unknown in held | before}
                    rows.add(both, 2 * constant - 1)


def _slowest(problem: SizingProblem, tape: Tape, count: int) -> float:
    """Seconds that no sensible sequence of so many collectives exceeds."""
    lines = problem.lines[0]
    dearest = max(line.latency + line.slope * line.most for line in lines)
    return max(problem.times.ready.values()) + count * dearest + max(problem.times.tails.values()) + problem.times.least


def _refusal(workload: Workload, pricing: Pricing, objective: Objective) -> Status | None:
    if not linear(pricing, objective) or objective.split or pricing.effects.fusion_copy:
        return Status.NOT_LINEAR
    if len(workload.gradients) > LAYERS:
        return Status.TOO_LARGE
    return None
