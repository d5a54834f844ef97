"""PyTorch FSDP2: the modules that ``fully_shard`` groups; each group is one message.

The rule of FSDP2 (torch 2.13, ``reshard_after_forward=False``; run over gloo with 2 ranks): a group of modules given
together is one reduce-scatter, when the last of its gradients is ready, and one all-gather of its updated parameters in
the next forward, which comes before the modules need it. Parameters in no group belong to the root and travel with it.
This is a plan with split all-reduces and forward overlap, its buckets whole modules. Not modelled: resharding after
forward, the default, gathers parameters once more in backward; the step ends before the first all-gather begins.
"""

from __future__ import annotations

import textwrap
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.errors import DataError, PlanError
from osfmodel.entities.executors import RUNTIME
from osfmodel.entities.plan import SPLIT, Objective, Plan, grouped_plan
from osfmodel.entities.rounding import least, within
from osfmodel.entities.workload import Workload
from osfmodel.solve.solution import Limits
from osfmodel.targets.target import (
    PLACEHOLDER_PRICES,
    Accumulation,
    Conversion,
    SettingsText,
    Target,
    exact_or,
    require_plain,
)

RULES = Objective(forward_overlap=True, strategy=SPLIT)
"""The rules of every FSDP2 plan, whatever is grouped."""
MOST_GROUPS = 32
"""Maximum number of groups of the even groupings that are tried."""
PLACES, MOST_TRIED = 60, 60_000
"""Maximum positions to try for the end of a group, and the groupings tried, times modules, at which the search ends."""

NEGLIGIBLE = 1e-4
"""Relative gain below which a further group is not worth adding."""


@dataclass(frozen=True, slots=True)
class FsdpKnobs:
    """Module names by group, from output to input; modules in no group are the root's. No groups: the root alone."""

    groups: tuple[tuple[str, ...], ...] = ()


def modules(workload: Workload) -> dict[str, list[int]]:
    """Positions in ready order of the gradients of each module, in the order in which the backward of modules ends.

    A module's backward ends after that of everything inside it, so its own parameters wait for theirs. The module is
    the part before the last dot of a parameter's name, "" for the root; in a profile of whole layers, whose names have
    no dots, it is the layer.
    """
    names = workload.gradients.names
    of_layers = not any("." in name for name in names)
    found: dict[str, list[int]] = {}
    for position, name in enumerate(names):
        found.setdefault(name if of_layers else name.rpartition(".")[0], []).append(position)
    ends = {name: positions[-1] for name, positions in found.items()}
    for name, positions in found.items():
        for place in (place for place, letter in enumerate(name) if letter == "."):
            if name[:place] in ends:
                ends[name[:place]] = max(ends[name[:place]], positions[-1])
    return dict(sorted(found.items(), key=lambda pair: (pair[0] == "", ends[pair[0]], -pair[0].count("."))))


def to_plan(knobs: FsdpKnobs, workload: Workload, pricing: Pricing) -> Plan:
    """A bucket per group, and one for the root if it has parameters; each dtype gets its own."""
    members = modules(workload)
    grouped = {name for group in knobs.groups for name in group}
    rows = [[*group] for group in knobs.groups] + [[name for name in members if name not in grouped]]
    positions = [sorted(i for name in row for i in members.get(name, ())) for row in rows]
    return grouped_plan(workload, _pure([row for row in positions if row], workload)).under(RULES)


def _pure(groups: Sequence[Sequence[int]], workload: Workload) -> list[list[int]]:
    """Groups split by dtype, since FSDP2 refuses a group of several dtypes."""
    dtypes = workload.gradients.dtypes
    kinds = [dict.fromkeys(dtypes[i] for i in group) for group in groups]
    pairs = zip(groups, kinds, strict=True)
    return [[i for i in group if dtypes[i] == kind] for group, found in pairs for kind in found]


def exact(plan: Plan, workload: Workload) -> FsdpKnobs:
    """The groups that form exactly this plan. Raises PlanError if none do."""
    if plan.objective != RULES:
        require_plain(plan, workload, "FSDP2")
        raise PlanError("FSDP2 splits all-reduces and overlaps the next forward: this plan does neither")
    plan.require_valid(workload)
    tensors, members = workload.gradients.names, modules(workload)
    module_of = {tensors[i]: name for name, positions in members.items() for i in positions}
    groups = tuple(tuple(dict.fromkeys(module_of[block.layer] for block in bucket.blocks)) for bucket in plan.buckets)
    for knobs in (FsdpKnobs(), FsdpKnobs(groups), FsdpKnobs(groups[:-1])):
        root = "" in {name for group in knobs.groups for name in group}
        if not root and to_plan(knobs, workload, PLACEHOLDER_PRICES) == plan:
            return knobs
    raise PlanError("no grouping of modules makes FSDP2 form this plan")


def nearest(plan: Plan, workload: Workload, pricing: Pricing, limits: Limits) -> FsdpKnobs:
    """The fastest of even groupings and the one nearest to the plan, then changed end by end while that helps.

    Raises PlanError if the plan needs an executor.
    """
    if plan.objective.plain or not RULES.permits(plan.objective):
        require_plain(plan, workload, "FSDP2")
    names = [name for name in modules(workload) if name]
    times: dict[frozenset[int], float] = {}

    def time(ends: frozenset[int]) -> float:
        if ends not in times:
            made = to_plan(_grouped(names, ends), workload, pricing)
            times[ends] = predict_timeline(workload, made, pricing).iteration_time
        return times[ends]

    tried = sorted([*_even(names, workload), _nearest(names, plan, workload)], key=len)
    best = next(ends for ends in tried if time(ends) <= min(map(time, tried)) * (1 + NEGLIGIBLE))
    while len(times) * len(names) < MOST_TRIED:
        changed = least([*_changed(best, len(names)), best], time, len)
        if time(changed) >= time(best) * (1 - NEGLIGIBLE):
            break
        best = changed
    default = predict_timeline(workload, to_plan(FsdpKnobs(), workload, pricing), pricing).iteration_time
    return FsdpKnobs() if default <= within(time(best)) else _grouped(names, best)


_any = exact_or(exact, nearest)


def from_plan(plan: Plan, workload: Workload, pricing: Pricing, limits: Limits = Limits()) -> FsdpKnobs:
    """The groups that form ``plan``; if none do, the fastest of those nearest to it and of even ones.

    Raises DataError for a workload from a trace without module names: there is nothing to group.
    """
    if workload.grain:
        raise DataError(
            f"the layers of {workload.name!r} are {workload.grain}s of a trace without names, and FSDP2 groups "
            "modules by name: profile the model with osf profile"
        )
    return _any(plan, workload, pricing, limits)


def _even(names: Sequence[str], workload: Workload) -> list[frozenset[int]]:
    """Ends of groups of about equal bytes, for 1, 2, 3 ... groups."""
    members, sizes = modules(workload), workload.gradients.sizes
    ends = list(accumulate(sum(sizes[i] for i in members[name]) for name in names))
    counts = range(1, min(len(names), MOST_GROUPS) + 1)
    return [
        frozenset(bisect_left(ends, ends[-1] * share // count) + 1 for share in range(1, count)) - {len(names)}
        for count in counts
    ] or [frozenset()]


def _nearest(names: Sequence[str], plan: Plan, workload: Workload) -> frozenset[int]:
    """Ends of groups that put each module where the last of its gradients is in the plan."""
    bucket_of = {block.layer: number for number, bucket in enumerate(plan.buckets) for block in bucket.blocks}
    members, tensors = modules(workload), workload.gradients.names
    numbers = list(accumulate((max(bucket_of[tensors[i]] for i in members[name]) for name in names), max))
    return frozenset(place for place in range(1, len(names)) if numbers[place] > numbers[place - 1])


def _changed(ends: frozenset[int], count: int) -> list[frozenset[int]]:
    places = {place * count // PLACES for place in range(1, PLACES)} - {0, count} if count > 1 else set()
    moved = [ends - {end} | {end + step} for end in sorted(ends) for step in (-1, 1) if 0 < end + step < count]
    return [*(ends ^ {place} for place in sorted(places | ends)), *moved]


def _grouped(names: Sequence[str], ends: frozenset[int]) -> FsdpKnobs:
    return FsdpKnobs(tuple(tuple(names[start:end]) for start, end in pairwise([0, *sorted(ends), len(names)])))


def caveats(workload: Workload) -> tuple[str, ...]:
    """Limits of a prediction for FSDP2."""
    return (
        "FSDP2 is predicted with reshard_after_forward=False; not modelled: gathering again in backward "
        "(reshard_after_forward=True), and copies into and out of messages",
    )


def config(knobs: FsdpKnobs) -> dict[str, Any]:
    """The groups as module names, in the order in which to wrap them."""
    return {"groups": _wrapped(list(knobs.groups[::-1])), "reshard_after_forward": False}


def _wrapped(groups: list[tuple[str, ...]]) -> list[list[str]]:
    """Groups in forward order, but modules inside another module first: the outer one takes the rest."""
    found = []
    while groups:
        group = next((group for group in groups if not _holds(group, groups)), groups[0])
        groups.remove(group)
        found.append(list(group[::-1]))
    return found


def _holds(group: tuple[str, ...], groups: Sequence[tuple[str, ...]]) -> bool:
    """Whether a module of ``group`` contains a module of another group."""
    inside = tuple(f"{name}." for name in group)
    return any(name.startswith(inside) for other in groups if other is not group for name in other)


def render(knobs: FsdpKnobs, workload: Workload) -> str:
    """Python to paste after the code that makes the model."""
    lines = [
        textwrap.fill(f"{group!r},", 112, initial_indent="    ", subsequent_indent="     ", break_on_hyphens=False)
        for group in config(knobs)["groups"]
    ]
    return TEMPLATE.format(name=workload.name, groups="\n".join(lines) + "\n" if lines else "", count=len(lines))


def accumulating(text: str, ending: str, count: int) -> str:
    """Lines that accumulate, after those that shard the model."""
    return text + ACCUMULATED.format(count=count)


ACCUMULATED = """
# The plan is for {count} micro-batches a step, sent with the last: train with this instead of a backward in each step.
def train_step(batches, loss_of, optimizer):  # {count} micro-batches; loss_of(batch) calls the model
    optimizer.zero_grad()
    for number, batch in enumerate(batches, 1):
        model.set_requires_gradient_sync(number == {count})  # before, gradients are added up, whole
        model.set_reshard_after_backward(number == {count})  # before, parameters stay, and are gathered once
        (loss_of(batch) / {count}).backward()
    optimizer.step()
"""
TEMPLATE = """\
# FSDP2 groups for {name}: {count} groups of modules, inner ones first; modules not listed stay in the root group.
# With resharding after forward, the default, parameters are gathered once more in backward: less memory, more to send.
from torch.distributed.fsdp import fully_shard

groups = [
{groups}]
for names in groups:
    fully_shard([model.get_submodule(name) for name in names], reshard_after_forward=False)
fully_shard(model, reshard_after_forward=False)
"""

TARGET = Target(
    summary="PyTorch FSDP2 with the whole model in one group, not resharded after forward",
    convert=Conversion(default_knobs=FsdpKnobs, from_plan=from_plan, to_plan=to_plan, exact=exact, unpriced=True),
    text=SettingsText(config=config, render=render, caveats=caveats, accumulation=Accumulation(accumulating)),
    executor=RUNTIME,
    objective=RULES,
)
