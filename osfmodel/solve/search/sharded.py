"""The best known groups of blocks for FSDP2 and HSDP, and for HSDP the number of replicas.

Each group is a run of whole blocks with at most GROWTH times the bytes of the largest block, so that gathered
parameters take at most about so many times the memory of one group per block; what is in no block stays in the root
group. Groups are gathered again in backward. Only within a limit on memory some are kept, as many as fit and are worth
it. More groups gathered ahead, several reduce-scatter inputs and a communicator for reduce-scatters are taken where
that is faster by more than NEGLIGIBLE.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from osfmodel.engine import predict_timeline
from osfmodel.entities.errors import PlanError, UsageError
from osfmodel.entities.executors import FSDP
from osfmodel.entities.modules import FULLY_SHARDED, SHARDED
from osfmodel.entities.plan import PLAIN, Objective
from osfmodel.solve.search.group_search import Grouping, GroupSearch
from osfmodel.solve.sharded_bounds import replica_counts
from osfmodel.solve.solution import PlanRule, Question, Solution, answer
from osfmodel.solve.verdicts import peak_within, shortfall

MESHES = 2
"""How many numbers of replicas are searched for groups; within a limit on memory, one."""
CLOSE = 1.02
"""A second number of replicas is searched if its time, with a group per block, is at most so many times the fastest."""


def solve(question: Question) -> Solution:
    """The best groups that were found. Raises UsageError for rules that do not shard, PlanError if nothing fits."""
    if question.objective.strategy not in SHARDED:
        raise UsageError("plan 'sharded' is for FSDP2 and HSDP: for other rules, take plan 'planned'")
    if question.limits.max_buckets is not None:
        raise UsageError("--max-buckets does not work with groups of FSDP2: give --max-bucket SIZE")
    found = _best(question)
    if found is None:
        raise PlanError(_lacking(question))
    search, grouping = found
    return answer(question, search.plan(grouping, question.workload))


def _best(question: Question) -> tuple[GroupSearch, Grouping] | None:
    """The fastest grouping that fits, with the search that found it, over the replicas that are worth a search."""
    workload, limits = question.workload, question.limits
    pricing = replace(question.pricing, parts=question.pricing.parts and cache(question.pricing.parts))
    counts = replica_counts(question.objective.strategy, pricing, limits.memory is not None)
    several = question.micro_batches
    searches = [GroupSearch(workload, pricing, count, limits, several) for count in counts]
    able = [search for search in searches if search.fits(search.each)] or searches
    ordered = sorted(able, key=lambda search: search.time(search.each))
    fastest = ordered[0].time(ordered[0].each)
    found = []
    for search in [one for one in ordered if one.time(one.each) <= fastest * CLOSE][
        : MESHES if limits.memory is None else 1
    ]:
        grouping = search.best()
        if grouping is not None:
            found.append((search, grouping))
    return min(found, key=lambda pair: pair[0].time(pair[1]), default=None)


def _lacking(question: Question) -> str:
    """A message that no plan fits, with the largest part of the memory of a group per block, and a remedy."""
    room = question.limits.memory
    assert room is not None
    search = GroupSearch(question.workload, question.pricing, 1, micro_batches=question.micro_batches)
    plan = search.plan(search.each, search.whole)
    timeline = predict_timeline(search.whole, plan, search.pricing)
    level = peak_within(room, search.whole, plan, timeline, question.pricing.workers)
    if level.bytes <= room.bytes:
        return "HSDP does not fit with any number of replicas, and FSDP2 does: take --for fsdp2"
    needs = shortfall(level, plan, room.bytes, batch=search.whole.batch_size)
    return f"{search.whole.name!r} does not fit: a group per block {needs}"


RULE = PlanRule(
    solve,
    "the best groups of blocks for FSDP2, each at most twice the largest block",
    objective=Objective(strategy=FULLY_SHARDED),
    executor=FSDP,
    serves=lambda objective: objective in [replace(PLAIN, strategy=one) for one in SHARDED],
)
