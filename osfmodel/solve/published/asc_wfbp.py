"""ASC-WFBP's grouping as released: merge tensors that wait for the network anyway, send all others at once.

S. Shi, X. Chu, B. Li, "Exploiting simultaneous communications to accelerate data parallel distributed deep learning",
INFOCOM 2021. Several all-reduces run at the same time, so that their start-ups pass together. The grouping is that of
the released code: tensor l is merged into the next one iff that is ready while l is still queued. Buckets go out in
ready order, one on each free channel. A reconstruction as far as the text goes, which was not available: what the paper
proves of its rule is not known here.
"""

from __future__ import annotations

from osfmodel.cost.pricing import Pricing
from osfmodel.entities.plan import Objective, Plan, contiguous_plan
from osfmodel.entities.workload import Gradients, Workload
from osfmodel.solve.published.regression import linear
from osfmodel.solve.solution import PlanRule, Question, Solution, answer

CHANNELS = 2
"""All-reduces at once in the authors' benchmarks ("asc2"; their logs have 1 to 4)."""
PUBLISHED_GAIN = 1.5
"""Gain of ``Pricing``: two equal ones together take a + 1.5 b s each (the authors' plot script), so X(2) = 4/3."""


def solve(question: Question) -> Solution:
    """The published rule, run under the rules of the question."""
    return answer(question, plan(question.workload, question.pricing).under(question.objective))


def plan(workload: Workload, pricing: Pricing) -> Plan:
    """The plan of buckets in ready order, for a + b bytes (other costs: the authors' regression)."""
    return contiguous_plan(workload, merge_queued(workload.gradients, *linear(pricing.cost())))


def merge_queued(gradients: Gradients, startup: float, per_byte: float) -> tuple[int, ...]:
    """The ends of the merged runs. As released, the queue is that of one channel. Types are never mixed.

    On one channel such merging delays nothing: the run starts when its first tensor would have started.
    """
    if not len(gradients):
        return ()
    ready, sizes, dtypes = gradients.ready_times, gradients.sizes, gradients.dtypes
    ends = []
    start, pending = ready[0], sizes[0]
    for i in range(1, len(sizes)):
        if start > ready[i] and dtypes[i] == dtypes[i - 1]:
            pending += sizes[i]
        else:
            ends.append(i)
            start, pending = max(start + startup + per_byte * pending, ready[i]), sizes[i]
    return (*ends, len(sizes))


RULE = PlanRule(solve, "several at once, as released (INFOCOM'21)", objective=Objective(CHANNELS))
