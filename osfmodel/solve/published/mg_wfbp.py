"""MG-WFBP exactly as published: merge a gradient into the next one if that saves waiting for a start-up.

S. Shi, X. Chu, B. Li, "MG-WFBP: Merging gradients wisely for efficient communication in distributed deep learning",
TPDS 2021, Algorithm 1: layer l is merged into l-1 iff layer l-1 is ready less than one start-up a after the
communication of l could begin, tau_b(l-1) + t_b(l-1) - tau_c(l) < a. Its Theorem 1 calls the result optimal; it is
not (docs/reference/model.md gives the counter-example), but it is never worse than twice the optimum.
"""

from __future__ import annotations

from collections.abc import Sequence

from osfmodel.entities.plan import PLAIN, contiguous_plan
from osfmodel.solve.published.regression import linear
from osfmodel.solve.solution import PlanRule, Question, Solution, answer


def solve(question: Question) -> Solution:
    """The published rule's plan. The rule has no limits: status BEYOND_LIMITS if its plan breaks one.

    Raises UsageError for other rules than the plain ones.
    """
    question.require_plain("MG-WFBP")
    startup, per_byte = linear(question.pricing.cost())
    gradients = question.workload.gradients
    ends = merge(gradients.ready_times, gradients.sizes, gradients.dtypes, startup, per_byte)
    return answer(question, contiguous_plan(question.workload, ends))


def merge(
    ready: Sequence[float],
    sizes: Sequence[int],
    dtypes: Sequence[str],
    startup: float,
    per_byte: float,
    least: int = 0,
) -> tuple[int, ...]:
    """Algorithm 1 in one pass over the ready order; the ends of the merged runs. Types are never mixed.

    A run below ``least`` bytes takes the next gradient in any case. The paper has no such rule; the authors' later code
    has it at 8192 elements (HKBU-HPML/ddl-benchmarks, mgwfbp/hv_distributed_optimizer.py).
    """
    if not sizes:
        return ()
    ends = []
    start, pending = ready[0], sizes[0]
    for i in range(1, len(sizes)):
        if (ready[i] - start < startup or pending < least) and dtypes[i] == dtypes[i - 1]:
            start, pending = max(start, ready[i]), pending + sizes[i]
        else:
            ends.append(i)
            start, pending = max(start + startup + per_byte * pending, ready[i]), sizes[i]
    return (*ends, len(sizes))


RULE = PlanRule(solve, "merged-gradient WFBP as published (TPDS'21)", serves=PLAIN.permits)
